#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/latest.h"
#include "dist_checkpointing/training_root/unfinished_work.h"
#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A checkpoint of a training root.
struct IterationSummary {
  enum class State : std::uint8_t {
    kNotExamined,  ///< older than SurveyOptions::newest, and nothing else asked for it
    kComplete,     ///< a run could resume from it; sound, if that was examined
    kNoMetadata,   ///< as Unfinished::Kind, as are the next three
    kFileMissing,
    kFileTruncated,
    kDamaged,     ///< or finished, but not sound (soundness.h)
    kUnreadable,  ///< could not be examined: I/O errors, unsupported formats
    kBeingSaved,  ///< a running process of this host is saving it in place
  };

  std::string directory;                     ///< "iter_0001000" or "release"
  std::optional<std::uint64_t> iteration{};  ///< empty for `release`
  /// Time of its newest file's last change, in nanoseconds since 1970; of the directory itself if
  /// it was not examined. 0 if unknown.
  std::int64_t saved = 0;
  std::uint64_t bytes = 0;  ///< size of all its files; 0 if it was not examined
  std::size_t files = 0;
  State state = State::kNotExamined;
  std::string why{};               ///< reason if it is not complete, as text for messages
  bool loads = false;              ///< a run would take it: it is finished, though not always sound
  bool resumed = false;            ///< a run that starts here takes it
  bool tracked = false;            ///< the tracker names it
  bool removed_by_policy = false;  ///< see SurveyOptions::retention
};
inline constexpr EnumNames<IterationSummary::State, 8> kIterationStateNames{
    {{IterationSummary::State::kNotExamined, "not-examined"},
     {IterationSummary::State::kComplete, "complete"},
     {IterationSummary::State::kNoMetadata, "no-metadata"},
     {IterationSummary::State::kFileMissing, "file-missing"},
     {IterationSummary::State::kFileTruncated, "file-truncated"},
     {IterationSummary::State::kDamaged, "damaged"},
     {IterationSummary::State::kUnreadable, "unreadable"},
     {IterationSummary::State::kBeingSaved, "being-saved"}}};

struct RootSurvey {
  std::vector<IterationSummary> iterations;  ///< `release` first, then ascending
  std::vector<UnfinishedWork> unfinished;    ///< hidden directories of saves and deletions
  std::string tracker;                       ///< name of the tracker file
  std::optional<std::string> tracked{};      ///< directory that the tracker names, there or not
  /// The answer of choose_latest(). If a checkpoint cannot be examined, its error is in
  /// `passed_over`.
  LatestChoice resume;
};

/// A survey examines its checkpoints in one of these ways.
enum class Examination : std::uint8_t {
  kFinished,  ///< find_unfinished(), as a run does that resumes
  kSound,     ///< find_unsound()
  kAllBytes,  ///< find_unsound() with `deep`
};

struct SurveyOptions {
  /// Number of newest checkpoints that are examined: listed, their metadata read, and a stat for
  /// each data file. Older ones are examined only if the other questions depend on them.
  std::size_t newest = 10;
  Examination examination = Examination::kFinished;
  /// An earlier survey with this examination, or null. Its verdict stands where the files of a
  /// checkpoint are as many, as large and as old as they were.
  const RootSurvey* known = nullptr;
  StrategySpec strategy = OpenOptions().strategy;  ///< strategy that the run loads with
  /// Marks the iterations that this retention removes when a run that has resumed here saves for
  /// the first time.
  std::optional<Retention> retention{};
  int threads = 4;
};

/// Surveys the checkpoints of a training root, and looks again if a job has changed it meanwhile
/// (still_root.h). Reads no tensor unless `examination` says so, and changes nothing. Throws
/// CheckpointError (io) if the root itself cannot be listed.
[[nodiscard]] RootSurvey survey_root(const Location& root, const SurveyOptions& options = {});

}  // namespace dckpt
