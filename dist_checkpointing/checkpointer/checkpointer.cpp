// The rules for writing to a training root, and the state that a crash leaves behind:
//
//   1  The first save locks ROOT/.dckpt.lock (flock) and keeps it: of several jobs, one saves; the
//      others get an error before they have changed anything. The system releases the lock when
//      rank 0's process ends, however it ends. The file stays; it says who has or had the root.
//      Each save first checks that the file in the root is still the locked one: if the root or
//      the file was removed or moved meanwhile, another job can have taken it.
//   2  With the lock held, leftovers of killed jobs are removed: nobody can be using them
//      (removal.cpp).
//   3  A save publishes ROOT/iter_N in one step (publish_by_rename.cpp). An earlier crash leaves
//      hidden files, which step 2 removes.
//   4  The tracker is replaced by one rename. A crash between 3 and 4 leaves N complete and the
//      tracker at the previous iteration: the run continues from that one, and saving N again
//      replaces it.
//   5  Iterations that retention removes are renamed to hidden names, then deleted. A crash leaves
//      some of them, which the next save or step 2 removes.

#include "dist_checkpointing/checkpointer/checkpointer.h"

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "configs/policy/option_rules.h"
#include "dist_checkpointing/load/dropped_tensors.h"
#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "dist_checkpointing/training_root/latest.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/retention.h"
#include "dist_checkpointing/training_root/root_links.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/log.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/comm/phase_label.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

// Encodes the answer of rank 0: whether there is a checkpoint, its directory, its iteration.
Bytes encode(const std::optional<LatestCheckpoint>& found) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(found ? 1 : 0);
  if (!found) return bytes;
  writer.text(found->directory);
  writer.number(found->iteration);
  return bytes;
}

std::optional<LatestCheckpoint> decode(ByteView bytes) {
  WireReader reader(bytes, "the latest checkpoint from rank 0");
  std::optional<LatestCheckpoint> found;
  if (reader.number(1) == 1) {
    found.emplace();
    found->directory = reader.text();
    found->iteration = reader.number(kMaxIteration);
  }
  reader.finish();
  return found;
}

/// Finds the latest checkpoint on rank 0, so that all ranks resume from the same one even if a
/// network file system shows them different contents.
std::optional<LatestCheckpoint> find_latest_together(const Location& root,
                                                     const StrategySpec& strategy,
                                                     Communicator& comm) {
  const PhaseLabel label("looking for the latest checkpoint");
  Bytes found;
  agree(comm, "looking for the latest checkpoint", [&] {
    if (comm.rank() == 0) found = encode(find_latest(root, strategy));
  });
  return decode(comm.broadcast(found, 0));
}

/// Returns the directory that the tracker names; empty if there is none or it cannot be read.
std::string tracked_by(const Storage& root) try {
  return read_tracker(root).value_or("");
} catch (const CheckpointError&) {
  return "";
}

/// Returns "training root 'run/chekpoints' does not exist; did you mean 'run/checkpoints'?".
std::string nothing_in(const Location& root) {
  const std::string text = "training root " + quote(root.display());
  if (root.stat()) return text + " holds no checkpoint";
  std::vector<std::string> siblings;
  try {
    for (FileInfo& entry : root.storage()->list("")) {
      if (entry.kind == FileInfo::Kind::kDirectory) siblings.push_back(std::move(entry.name));
    }
  } catch (const CheckpointError&) {  // there is nothing to suggest
  }
  const auto close = nearest(root.name(), siblings);
  return str_format(
      "{} does not exist{}", text,
      close ? str_format("; did you mean {}?", quote(root.storage()->display_path(*close))) : "");
}

std::string task_of(const AllowedOnce& allow) {
  return str_format("save{}{}", allow.dropped_keys ? " without all keys" : "",
                    allow.unloaded_keys ? " with keys that were not loaded" : "");
}

}  // namespace

Checkpointer::Checkpointer(Location root, Policy policy, Communicator& comm, SaveHooks hooks) try
    : root_(std::move(root)),
      policy_(std::move(policy)),
      hooks_(with_check(std::move(hooks))),
      policy_text_(to_yaml(policy_)),
      comm_(comm) {
  make_save_strategy(policy_.save);  // fails before training, not at the first save
  make_save_planner(policy_.save);
  make_load_planner(policy_.load);
  require_rules(Call::kLoad, policy_, nullptr);
  require_rules(Call::kKeep, policy_, nullptr);
  if (const StrategySpec& strategy = policy_.load.strategy; strategy.name != kAutoStrategy)
    find_load_strategy(strategy.name, strategy.version);
} catch (...) {
  throw_checkpoint_error();
}

Checkpointer::~Checkpointer() = default;

void Checkpointer::claim() try {
  require_same_on_all_ranks("claim the training root");
  Heartbeat(comm_).agree("claiming the training root", [&] {
    if (comm_.rank() == 0) take_root();
  });
} catch (...) {
  throw_checkpoint_error();
}

PendingSave Checkpointer::save(const StateDict& state, std::uint64_t iteration,
                               const AllowedOnce& allow) try {
  if (policy_.save.async.enabled) return save_async(state, iteration, allow);
  require_same_on_all_ranks(task_of(allow), iteration);
  allowed_ = allow;
  require_descriptions(state);
  const SaveOptions options = prepare(iteration);
  SaveReport report = dckpt::save(state, root_ / iteration_directory(iteration), options, comm_,
                                  save_plans_, hooks_);
  record(iteration, comm_);
  return PendingSave(std::move(report));
} catch (...) {
  throw_checkpoint_error();
}

PendingSave Checkpointer::save_async(const StateDict& state, std::uint64_t iteration,
                                     const AllowedOnce& allow) try {
  if (policy_.save.async.when_busy == WhenBusy::kSkip && saver_ && saver_->busy())
    return PendingSave::skip(root_ / iteration_directory(iteration), comm_);
  if (policy_.save.async.when_busy != WhenBusy::kReplace) wait();
  compare_arguments(task_of(allow), iteration);
  allowed_ = allow;
  require_descriptions(state);
  const SaveOptions options = prepare(iteration);
  if (!saver_) saver_ = std::make_unique<AsyncSaver>(policy_.save, comm_, hooks_, &save_plans_);
  return saver_->save(state, root_ / iteration_directory(iteration), options.overwrite,
                      [this, iteration](Communicator& comm) { record(iteration, comm); });
} catch (...) {
  throw_checkpoint_error();
}

void Checkpointer::wait() try {
  if (saver_) saver_->wait();
} catch (...) {
  throw_checkpoint_error();
}

void Checkpointer::wait_staged() const {
  if (saver_) saver_->wait_staged();
}

std::optional<std::uint64_t> Checkpointer::latest() try {
  require_same_on_all_ranks("look for the latest checkpoint");
  const auto found = find_latest_together(root_, policy_.load.strategy, comm_);
  if (!found) return std::nullopt;
  return found->iteration;
} catch (...) {
  throw_checkpoint_error();
}

/// Loads, and remembers the places of sharded leaves for the next save.
LoadReport Checkpointer::load_from(const Location& checkpoint, StateDict& state) {
  LoadReport report = load_more(state, checkpoint, policy_.load, comm_, load_plans_, found_.get());
  found_ = report.found;
  agree(comm_, "remembering what was loaded", [&] { sharded_paths_ = ShardedPaths(state); });
  return report;
}

/// Refuses a state whose tensors have lost their descriptions: it would be saved as rank 0's common
/// state, and no load would find its keys again.
void Checkpointer::require_descriptions(const StateDict& state) {
  const PhaseLabel label("checking the state");
  TensorKinds mine;
  agree(comm_, "checking the state", [&] {
    sharded_paths_.require_still_sharded(state);
    mine = tensor_kinds(state);
  });
  const std::array<std::int64_t, 2> flags{mine.sharded, mine.plain};
  const std::vector<std::int64_t> any = comm_.all_reduce(flags, ReduceOp::kMax);
  if (any[0] != 0 || any[1] == 0 || canonical(policy_.save).compat == Compat::kDcp) return;
  agree(comm_, "comparing the state with the latest checkpoint", [&] {
    if (comm_.rank() != 0) return;
    const auto latest = find_latest(root_, policy_.load.strategy);
    if (!latest) return;
    const auto reader = open_in_root(root_ / latest->directory, policy_.load.strategy);
    if (reader->metadata().tensors.empty()) return;
    throw_error(ErrorCode::kInvalidArgument, {.file = root_.display()},
                "the state has plain tensors only, but {} of this training root has sharded "
                "ones; describe what each rank holds with ShardedTensor (a state that "
                "load_plain() returned has lost its descriptions; load() keeps them)",
                quote(latest->directory));
  });
}

std::optional<ResumedFrom> Checkpointer::load_if_any(StateDict& state) {
  require_same_on_all_ranks("load the latest checkpoint");
  agree(comm_, "looking for the tracker", [&] {
    if (comm_.rank() == 0) tracked_ = tracked_by(*root_.directory());
  });
  const auto found = find_latest_together(root_, policy_.load.strategy, comm_);
  if (!found) return std::nullopt;
  ResumedFrom resumed{found->iteration, root_ / found->directory, {}};
  resumed.report = load_from(resumed.directory, state);
  loaded_ = position_ = found->iteration;
  return resumed;
}

std::optional<ResumedFrom> Checkpointer::load_latest(StateDict& state) try {
  std::optional<ResumedFrom> resumed = load_if_any(state);
  if (!resumed && comm_.rank() == 0) log_warning(nothing_in(root_) + ": the run begins anew");
  return resumed;
} catch (...) {
  throw_checkpoint_error();
}

ResumedFrom Checkpointer::resume(StateDict& state) try {
  std::optional<ResumedFrom> resumed = load_if_any(state);
  if (!resumed) {
    decide(comm_, [&] {
      throw_error(ErrorCode::kIncomplete, {.file = root_.display()},
                  "cannot resume: " + nothing_in(root_));
    });
  }
  return *std::move(resumed);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport Checkpointer::load(StateDict& state, std::uint64_t iteration) try {
  require_same_on_all_ranks("load", iteration);
  const Location checkpoint = root_ / iteration_directory(iteration);
  agree(comm_, "looking for the checkpoint", [&] {
    if (comm_.rank() == 0) tracked_ = tracked_by(*root_.directory());
    if (checkpoint.is_directory()) return;
    throw_error(ErrorCode::kIncomplete, {.file = root_.display()},
                "the training root has no iteration {}; it has {}", iteration,
                describe_iterations(list_iterations(root_)));
  });
  LoadReport report = load_from(checkpoint, state);
  loaded_ = position_ = iteration;
  return report;
} catch (...) {
  throw_checkpoint_error();
}

/// Called first in every function but save_async: afterwards the background threads have ended, and
/// nothing else uses this object's members.
void Checkpointer::require_same_on_all_ranks(const std::string& attempt,
                                             std::optional<std::uint64_t> iteration) {
  wait();
  compare_arguments(attempt, iteration);
}

void Checkpointer::compare_arguments(const std::string& attempt,
                                     std::optional<std::uint64_t> iteration) {
  const std::array<SharedArgument, 4> arguments{{
      {"tasks", attempt},
      {"iterations", iteration ? std::to_string(*iteration) : ""},
      {"training roots", root_.absolute()},
      {"policies",
       policy_text_ + (policy_.save.overwrite ? "overwrite: true" : "overwrite: false")},
  }};
  require_same(comm_, attempt, arguments);
}

/// Claims the root and decides whether the save may replace an existing checkpoint.
SaveOptions Checkpointer::prepare(std::uint64_t iteration) {
  const std::string task = "preparing the save of iteration " + std::to_string(iteration);
  const PhaseLabel label(task);
  std::array<std::int64_t, 1> replace{0};
  Heartbeat(comm_).agree(task, [&] {
    if (comm_.rank() != 0) return;
    take_root();
    if (!std::exchange(has_saved_, true)) warn_if_behind(iteration);
    replace[0] = must_replace(iteration) ? 1 : 0;
    require_no_successor("nothing is saved");
  });
  SaveOptions options = policy_.save;
  options.overwrite = comm_.all_reduce(replace, ReduceOp::kMax).front() != 0;
  return options;
}

/// Records a published save in the tracker and applies retention.
void Checkpointer::record(std::uint64_t iteration, Communicator& comm) {
  const std::string recorded = str_format(
      "iteration {} is saved, but the tracker and old checkpoints stay as they are", iteration);
  Heartbeat(comm).agree(
      str_format("recording iteration {}, which is saved and complete,", iteration), [&] {
        if (comm.rank() != 0) return;
        set_known_complete(iteration, true);
        require_no_successor(recorded);
        write_tracker(*root_.directory(), iteration);
        give_back_tracker(iteration, recorded);
        remove_old(iteration);
      });
  const std::lock_guard lock(mutex_);
  if (position_) position_ = iteration;
}

void Checkpointer::take_root() {
  if (claimed_ && still_has_root()) return;
  root_.directory()->make_directory("");
  if (!claimed_) owner_ = lock_owner();
  std::unique_ptr<StorageLock> lock = lock_root(root_, owner_);
  if (!claimed_) require_same_tracker();
  if (lock) {
    remove_leftovers(root_, policy_.load.strategy);
  } else {
    log_warning(
        str_format("training root {}: make sure that no other job saves here; leftovers of killed "
                   "saves are not removed, because this storage has no locks",
                   quote(root_.display())));
  }
  {
    const std::lock_guard guard(mutex_);  // a save in the background may be recording
    lock_ = std::move(lock);
  }
  claimed_ = true;
  log_info(str_format("saving to training root {} with the policy\n{}", quote(root_.display()),
                      policy_text_));
}

/// Returns false if the root is no longer claimed, and forgets everything known about it.
bool Checkpointer::still_has_root() {
  if (!lock_ || lock_->is_held()) return true;
  log_warning(
      str_format("training root {}: the root, or {} in it, was removed or moved while this "
                 "job was saving there; the job claims the root again",
                 quote(root_.display()), quote(kRootLock)));
  const std::lock_guard lock(mutex_);
  known_complete_.clear();
  return false;
}

/// Throws (aborted) if another job has saved since this one loaded, which may have been stopped in
/// between: it would replace what that job has saved, as if that were an abandoned history.
void Checkpointer::require_same_tracker() const {
  const std::string now = tracked_by(*root_.directory());
  if (!tracked_ || *tracked_ == now) return;
  throw_error(
      ErrorCode::kAborted, {.file = root_.display()},
      "when this run looked for a checkpoint to load, the tracker named {}; now it names "
      "{}, so another job has saved here and nothing was saved now. Start again from there, or "
      "put the tracker back if you want to replace that checkpoint",
      tracked_->empty() ? "nothing" : quote(*tracked_), now.empty() ? "nothing" : quote(now));
}

/// Throws (aborted) if a job has claimed the root since, which the lock has not kept out: this one
/// may have been stopped for so long that it was taken for dead.
void Checkpointer::require_no_successor(const std::string& outcome) const {
  {
    const std::lock_guard lock(mutex_);
    if (!lock_) return;
  }
  const std::string words = lock_words(*root_.directory());
  if (!words.starts_with(kJob) || words == owner_) return;
  throw_error(ErrorCode::kAborted, {.file = root_.display()},
              "another job, {}, now holds this training root, because the file system does not "
              "keep it out: {}; end one of the two jobs",
              quote(words), outcome);
}

/// Undoes write_tracker() if another job came in between: names what that job has saved last.
void Checkpointer::give_back_tracker(std::uint64_t saved, const std::string& outcome) try {
  require_no_successor(outcome);
} catch (const CheckpointError&) {
  const auto directory = root_.directory();
  const std::string mine = iteration_directory(saved);
  std::optional<FileInfo> newest = directory->stat(mine);
  for (const FileInfo& entry : directory->list("")) {
    if (newest && parse_iteration_directory(entry.name) && entry.modified >= newest->modified &&
        entry.name != mine && !why_incomplete(root_ / entry.name, policy_.load.strategy))
      newest = entry;
  }
  if (newest) write_tracker(*directory, *parse_iteration_directory(newest->name));
  throw;
}

bool Checkpointer::must_replace(std::uint64_t iteration) {
  const std::string name = iteration_directory(iteration);
  const auto entry = root_.directory()->stat(name);
  replaced_ = entry ? entry->id : 0;
  if (!entry) return false;
  if (policy_.save.overwrite) return true;
  const auto [known_complete, position] = [&] {
    const std::lock_guard lock(mutex_);
    return std::pair(known_complete_.contains(iteration), position_);
  }();
  const auto reason =
      known_complete ? std::nullopt : why_incomplete(root_ / name, policy_.load.strategy);
  if (reason) {
    log_warning(str_format("iteration {} is there but incomplete, and is replaced: {}", iteration,
                           *reason));
    return true;
  }
  if (position && iteration > *position) {
    log_warning(str_format(
        "iteration {} is replaced: it was saved before the run went back to iteration {}",
        iteration, *loaded_));
    return true;
  }
  throw_error(ErrorCode::kAlreadyExists, {.file = (root_ / name).display()},
              "refusing to replace iteration {}, which is complete: go on from an iteration of "
              "this root (load, load_latest), choose another root, or allow overwriting",
              iteration);
}

void Checkpointer::warn_if_behind(std::uint64_t iteration) {
  const std::vector<std::uint64_t> iterations = list_iterations(root_);
  if (position_ || iterations.empty() || iterations.back() <= iteration) return;
  log_warning(
      str_format("training root {} has {}, but this run has loaded none of them; it is about to "
                 "save iteration {}, from which the next start will go on",
                 quote(root_.display()), describe_iterations(iterations), iteration));
}

/// Deletes old checkpoints. If one cannot be removed, the save has still succeeded.
void Checkpointer::remove_old(std::uint64_t saved) {
  const auto warn = [&](const std::exception& error) {
    log_warning(str_format("iteration {} is saved, but old checkpoints could not be removed: {}",
                           saved, error.what()));
  };
  try {
    const auto storage = root_.directory();
    const std::vector<std::uint64_t> in_use =
        loaded_ ? std::vector{*loaded_} : std::vector<std::uint64_t>{};
    const std::vector<std::uint64_t> iterations = list_iterations(root_);
    if (policy_.retention.keep_last == 0 || iterations.size() <= policy_.retention.keep_last)
      return;
    std::map<std::string, std::uint64_t> ids;
    for (const FileInfo& entry : storage->list("")) ids.emplace(entry.name, entry.id);
    const auto sound = [&](std::uint64_t iteration) { return is_sound(iteration); };
    const RootLinks links(root_);
    for (const std::uint64_t old : iterations_to_delete(iterations, saved, policy_.retention,
                                                        in_use, links.once_each(sound))) {
      try {
        const std::string name = iteration_directory(old);
        if (links.why_kept(name)) continue;
        set_known_complete(old, false);
        delete_checkpoint(*storage, name, ids[name]);
      } catch (const std::exception& error) {
        warn(error);
      }
    }
  } catch (const std::exception& error) {
    warn(error);
  }
}

/// Returns whether a checkpoint counts among those that retention keeps.
bool Checkpointer::is_sound(std::uint64_t iteration) {
  {
    const std::lock_guard lock(mutex_);
    if (known_complete_.contains(iteration)) return true;
  }
  const std::string name = iteration_directory(iteration);
  const auto unsound = find_unsound(root_ / name, policy_.load.strategy);
  if (unsound && unsound->kind != Unfinished::Kind::kNoMetadata)
    log_warning(
        str_format("training root {}: {} does not count among the {} that retention keeps: "
                   "{}",
                   quote(root_.display()), quote(name), policy_.retention.keep_last, unsound->why));
  if (!unsound) set_known_complete(iteration, true);
  return !unsound;
}

SaveHooks Checkpointer::with_check(SaveHooks hooks) {
  hooks.accept = [this, own = std::move(hooks.accept)](const Metadata& planned,
                                                       const Value* common) {
    if (found_) {
      with_context({.file = root_.display()}, [&] {
        AllowedOnce allow = allowed_;
        allow.dropped_keys |= policy_.resume.allow_dropped_keys;
        require_continued(*found_, planned, common, allow);
      });
    }
    if (own) own(planned, common);
  };
  hooks.may_replace = [this, own = std::move(hooks.may_replace)](const FileInfo& old) {
    if (old.id != replaced_) {
      throw_error(ErrorCode::kAborted, {.file = (root_ / old.name).display()},
                  "another job has saved this iteration in the meantime, so it stays");
    }
    if (own) own(old);
  };
  return hooks;
}

void Checkpointer::set_known_complete(std::uint64_t iteration, bool complete) {
  const std::lock_guard lock(mutex_);
  if (complete)
    known_complete_.insert(iteration);
  else
    known_complete_.erase(iteration);
}

}  // namespace dckpt
