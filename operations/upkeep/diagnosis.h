#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dist_checkpointing/training_root/unfinished_work.h"
#include "mapping/base/api.h"
#include "operations/inspect/root_survey.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A checkpoint's state in one word.
enum class Verdict : std::uint8_t {
  kComplete,
  kIncomplete,  ///< metadata or data files are missing
  kDamaged,     ///< files are too short, or hold what no save has written
  kUnreadable,  ///< it could not be examined
  kBeingSaved,
};
inline constexpr EnumNames<Verdict, 5> kVerdictNames{{{Verdict::kComplete, "complete"},
                                                      {Verdict::kIncomplete, "incomplete"},
                                                      {Verdict::kDamaged, "damaged"},
                                                      {Verdict::kUnreadable, "unreadable"},
                                                      {Verdict::kBeingSaved, "being-saved"}}};
Verdict verdict_of(IterationSummary::State state);

/// Files of a job in a training root, which has left them or is still working on them.
struct Leftover {
  UnfinishedWork work;  ///< also "tmp": a tracker that was never renamed into place
  std::uint64_t bytes = 0;
  bool comes_back = false;  ///< a replaced checkpoint, complete, without a sound successor
  bool in_doubt = false;    ///< neither it nor its successor is sound, or that cannot be determined
  bool is_old = false;      ///< nothing in it has changed within kSettled (may_go_on.h)
};

/// A checkpoint or tracker that treat_root() has set aside and can bring back.
struct SetAside {
  std::string name;
  std::string original;      ///< its name before: a checkpoint's directory, or the tracker
  std::uint64_t number = 0;  ///< counts those of the same original, from 1
  std::uint64_t bytes = 0;
};

/// The checkpoint that Megatron takes: it reads the tracker, and looks at nothing else.
struct MegatronChoice {
  std::optional<std::string> directory{};  ///< empty if it starts from scratch or stops
  std::string why{};                       ///< as text for messages
  bool reads_tracker = false;              ///< the tracker has a form that it reads
};

struct RootOwner {
  std::string name;  ///< as the lock has it: "job HOST-PROCESS-…", "doctor HOST-…"
  UnfinishedWork::State state = UnfinishedWork::State::kElsewhere;
};

struct RootDiagnosis {
  RootSurvey survey;  ///< with every checkpoint examined
  /// Directories of unfinished checkpoints that a job may still be writing: one of another host has
  /// claimed it, or something in it has changed within kSettled (may_go_on.h).
  std::set<std::string, std::less<>> may_be_written{};
  std::vector<Leftover> leftovers{};
  std::vector<SetAside> set_aside{};
  /// Names that begin as those of iterations do, but are spelled otherwise or lead to no directory.
  std::vector<std::string> not_counted{};
  std::string tracker_problem{};  ///< empty if the tracker names a complete checkpoint, or if there
                                  ///< is none
  /// Why Megatron-Bridge, which reads its own tracker first, does not take what the other tracker
  /// names; empty without such a file.
  std::string bridge_problem{};
  MegatronChoice megatron{};
  /// The job that has or had the root's lock; a treatment only while it runs here.
  std::optional<RootOwner> owner{};
  bool deep = false;

  const IterationSummary* find(std::string_view directory) const;  ///< null if there is none
  bool is_written(std::string_view directory) const;               ///< being saved, or perhaps
  /// Returns whether a leftover can go: its job has ended, or is of another host and has changed
  /// nothing within kSettled, so that it has ended in all likelihood.
  static bool is_waste(const Leftover& leftover);
  /// Sizes of leftovers that can go, of checkpoints that are incomplete or damaged, and of those
  /// that are set aside.
  std::uint64_t wasted_bytes() const;
  /// False if a checkpoint is not complete and nobody may be writing it, or if a tracker has a
  /// problem.
  bool ok() const;
};

struct DiagnoseOptions {
  bool deep = false;  ///< verifies complete checkpoints with all bytes, not only with their headers
  StrategySpec strategy = OpenOptions().strategy;  ///< strategy that the run loads with
  int threads = 4;
  /// An earlier diagnosis, as deep as this one, which stands for checkpoints whose files are as
  /// they were (SurveyOptions::known); may be null.
  const RootSurvey* known = nullptr;
};

/// Finds out what is in a training root: every checkpoint, what a run would take, and what jobs
/// have left. Changes nothing. Throws CheckpointError: (io) if there is no root or it cannot be
/// listed; (invalid argument) for a directory that is neither a training root nor empty.
[[nodiscard]] RootDiagnosis diagnose_root(const Location& root,
                                          const DiagnoseOptions& options = {});

}  // namespace dckpt
