#include "operations/upkeep/treatment.h"

#include <algorithm>

#include "dist_checkpointing/training_root/foreign_entries.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/training_root/set_aside.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/storage_name.h"
#include "operations/upkeep/treatment_plan.h"

namespace dckpt {
namespace {

using StepKind = TreatmentStep::Kind;

constexpr std::uint64_t kMaxCopiedTracker = 4096;
constexpr std::uint64_t kMaxBridgeState = std::uint64_t{1} << 20;

void rename(Storage& root, const std::string& from, const std::string& to) {
  if (!root.capabilities().rename) {
    throw_error(ErrorCode::kUnsupported, {.file = root.display_path(from)},
                "this storage cannot rename, so nothing can be set aside in it");
  }
  root.rename(from, to);
  root.sync_directory("");
}

bool is_small_file(const std::optional<FileInfo>& entry) {
  return entry && entry->kind == FileInfo::Kind::kRegular && entry->size <= kMaxCopiedTracker;
}

/// Copies a tracker. Anything else in its place is renamed.
void move_tracker(Storage& root, const std::string& from, const std::string& to) {
  if (is_small_file(root.stat(from)))
    root.put(to, read_file(*root.open(from), kMaxCopiedTracker));
  else
    rename(root, from, to);
}

/// Megatron-Bridge's tracker is a copy of the train state of the iteration that it names.
Bytes tracker_content(const Storage& root, const TreatmentStep& step) {
  if (step.name == kTrackerFile) {
    const ByteView text = as_bytes(step.to);
    return {text.begin(), text.end()};
  }
  const std::string directory = parse_iteration_name(step.to).value().directory();
  return read_file(*root.open(join_name(directory, kBridgeStateFile)), kMaxBridgeState);
}

/// Removes what a save in place has written, and keeps what no save has.
void remove_unfinished(const Location& checkpoint) {
  const std::vector<std::string> foreign = foreign_entries(checkpoint);
  const std::shared_ptr<Storage> directory = checkpoint.directory();
  for (const FileInfo& entry : directory->list("")) {
    if (std::ranges::find(foreign, entry.name) == foreign.end()) directory->remove_all(entry.name);
  }
  if (foreign.empty()) checkpoint.storage()->remove_all(checkpoint.name());
}

void take(const Location& root, const TreatmentStep& step, const RootDiagnosis& found,
          const StrategySpec& strategy) {
  const std::shared_ptr<Storage> directory = root.directory();
  Storage& storage = *directory;
  const auto sibling = parse_hidden_sibling(step.name);
  const bool is_leftover = sibling && !parse_set_aside(step.name) && sibling->purpose != "tmp";
  if (is_leftover) return remove_leftover(storage, *sibling, strategy);
  switch (step.kind) {
    case StepKind::kSetAside: return rename(storage, step.name, step.to);
    case StepKind::kBringBack: {
      if (step.to != kTrackerFile && step.to != kBridgeTrackerFile)
        return rename(storage, step.name, step.to);
      if (!is_small_file(storage.stat(step.name))) storage.remove_all(step.to);
      move_tracker(storage, step.name, step.to);
      return storage.remove_all(step.name);
    }
    case StepKind::kWriteTracker: {
      if (storage.stat(step.name))
        move_tracker(storage, step.name, to_string(next_aside(storage, step.name)));
      return storage.put(step.name, tracker_content(storage, step));
    }
    case StepKind::kDelete: return delete_checkpoint(storage, step.name);
    case StepKind::kRemove: {
      if (found.find(step.name) != nullptr) return remove_unfinished(root / step.name);
      return storage.remove_all(step.name);
    }
  }
}

/// Locks the root for the treatment.
std::unique_ptr<StorageLock> take_root(const Location& root, const Treatment& treatment) {
  std::unique_ptr<StorageLock> lock = lock_root(root, lock_owner(kDoctor));
  if (!lock && !treatment.all_jobs_ended) {
    throw_error(ErrorCode::kUnsupported, {.file = root.display()},
                "this storage has no locks, so a job at work in the root would not be "
                "noticed; say --all-jobs-ended if you know that there is none");
  }
  return lock;
}

}  // namespace

TreatmentReport treat_root(const Location& root, const Treatment& treatment,
                           const std::function<void(const TreatmentReport&)>& before) try {
  const TreatmentReport first = plan_treatment(root, treatment, treatment.diagnose);
  if (!treatment.apply || first.steps.empty()) return first;
  const std::unique_ptr<StorageLock> lock = take_root(root, treatment);
  // Another job may have changed something before the lock. What it has not changed is not examined
  // again, since jobs that start wait for the lock.
  DiagnoseOptions changed = treatment.diagnose;
  changed.known = &first.diagnosis.survey;
  TreatmentReport report = plan_treatment(root, treatment, changed);
  report.diagnosis.owner = first.diagnosis.owner;
  if (before) before(report);
  for (const TreatmentStep& step : report.steps)
    take(root, step, report.diagnosis, treatment.diagnose.strategy);
  report.applied = true;
  report.resume = survey_root(root, {.newest = 0, .strategy = treatment.diagnose.strategy}).resume;
  return report;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
