#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/api.h"
#include "operations/upkeep/diagnosis.h"

namespace DCKPT_API dckpt {

/// Requests of treat_root(). `clean` and `prune` cannot be undone.
struct Treatment {
  /// Makes the tracker name the newest complete checkpoint, unless it names a complete one. The old
  /// content is kept.
  bool repair_tracker = false;
  /// Gives a checkpoint a hidden name that no run and no save looks at.
  std::optional<IterationName> quarantine{};
  /// Removes what jobs that have ended have left. What they had set aside comes back if nothing has
  /// taken its place. What is set aside by a treatment stays.
  bool clean = false;
  std::optional<IterationName> restore{};  ///< brings a quarantined checkpoint back
  bool restore_tracker = false;            ///< brings the tracker's old content back
  /// Deletes what a run with this retention deletes that has just saved the checkpoint from which a
  /// run would resume: see iterations_to_delete() (training_root/retention.h). Links stay, and so
  /// does what they lead to.
  std::optional<Retention> prune{};
  /// Says that no job of another host is at work in the root: only processes of this host are then
  /// taken to be alive.
  bool all_jobs_ended = false;
  bool apply = false;  ///< otherwise nothing is changed
  DiagnoseOptions diagnose{};
};

struct TreatmentStep {
  enum class Kind : std::uint8_t { kSetAside, kBringBack, kWriteTracker, kRemove, kDelete };
  Kind kind{};        ///< kRemove: of leftovers; kDelete: of a checkpoint
  std::string name;   ///< in the root
  std::string to{};   ///< new name; of kWriteTracker the new content
  std::string why{};  ///< reason, as text for messages
  std::uint64_t bytes = 0;
  /// Option of `dckpt doctor` that undoes it; empty if none does. A tracker that is written where
  /// there was none is to be removed.
  std::string undo{};
};
inline constexpr EnumNames<TreatmentStep::Kind, 5> kTreatmentStepNames{
    {{TreatmentStep::Kind::kSetAside, "set-aside"},
     {TreatmentStep::Kind::kBringBack, "bring-back"},
     {TreatmentStep::Kind::kWriteTracker, "write-tracker"},
     {TreatmentStep::Kind::kRemove, "remove"},
     {TreatmentStep::Kind::kDelete, "delete"}}};

struct TreatmentReport {
  RootDiagnosis diagnosis{};           ///< before the treatment
  std::vector<TreatmentStep> steps{};  ///< in their order
  std::vector<std::string> remarks{};  ///< what stays as it is and why, as text for messages
  bool applied = false;
  LatestChoice resume{};  ///< what a run takes now
};

/// Diagnoses a training root, and treats it as requested. Whatever a live job may be using stays:
/// everything of processes that run on this host, and of other hosts unless `all_jobs_ended`. With
/// `apply`, holds the root's lock meanwhile, calls `before` with the report, and then changes what
/// its steps say. Throws CheckpointError: as diagnose_root does; (aborted) if a job has the root's
/// lock or may be writing the checkpoint to quarantine; (incomplete) if there is no such
/// checkpoint, none that the tracker could name, or, to prune, none to resume from; (invalid
/// argument) for a retention that keeps all; (already exists) if the place of what is to be
/// restored is taken; (unsupported) for a storage that cannot rename or lock; (io).
[[nodiscard]] TreatmentReport treat_root(
    const Location& root, const Treatment& treatment,
    const std::function<void(const TreatmentReport&)>& before = {});

}  // namespace dckpt
