#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "configs/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "dist_checkpointing/save/sharded_paths.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// What resume or load_latest has loaded.
struct ResumedFrom {
  std::uint64_t iteration = 0;  ///< 0 for `release`
  Location directory;
  LoadReport report;
};

/// The checkpoints of a training run: saves iterations under one root, keeps the tracker file,
/// finds the newest complete checkpoint, and removes old ones as the policy's `retention` says.
/// docs/checkpointer.md tells what happens to a root when.
///
/// All functions are collective over the communicator, which must outlive the checkpointer: every
/// rank calls them in the same order with the same iteration, and has the same root and policy
/// (that is compared); all return or all throw the same CheckpointError. One thread at a time. Rank
/// 0 alone writes and removes anything but data files.
class Checkpointer {
 public:
  /// Touches nothing on disk. `policy.save.overwrite` allows a save to replace an iteration that is
  /// complete.
  Checkpointer(Location root, Policy policy, Communicator& comm, SaveHooks hooks = {});
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Makes the root this job's own until the checkpointer is destroyed or rank 0's process ends:
  /// creates it, locks it, and removes what killed saves have left. The first save does the same;
  /// calling it when training starts shows at once that the root cannot be written or that another
  /// job saves there. A job that only loads does not need it. Throws (aborted) if another job has
  /// the root, (io).
  void claim();

  /// Saves `state` as the root's `iter_%07d`, then names it in the tracker, then removes what
  /// retention lets go (if that fails: a warning). Refuses an iteration that is there and complete,
  /// unless this run has gone back: it has loaded an older iteration, so that the one that is there
  /// belongs to a history it has left. What is there and incomplete is replaced. `save` in save.h
  /// says what a state is. With the policy's `save.async.enabled` it returns as save_async does. In
  /// the foreground it has ended when this returns, and wait() only hands out the report.
  PendingSave save(const StateDict& state, std::uint64_t iteration);

  /// The same in the background: returns as soon as the state may change. The tracker and retention
  /// follow in the background, too. The next call of any function waits for it; if it has failed
  /// and a rank has not asked for its outcome, that call throws its error and does nothing else.
  PendingSave save_async(const StateDict& state, std::uint64_t iteration);

  /// Waits for the save in the background, if there is one, and throws its error unless every rank
  /// has asked for it.
  void wait();

  /// From where load_latest would go on (0 for `release`); empty if the root holds nothing. Throws
  /// (incomplete) if it holds only unfinished checkpoints.
  std::optional<std::uint64_t> latest();

  /// Loads the latest complete checkpoint, as find_latest chooses it. Empty, with a warning, if the
  /// root holds nothing: the run begins anew, and `state` is as it was. `state` keeps its
  /// descriptions (load.h): the same tree can be saved next.
  [[nodiscard]] std::optional<ResumedFrom> load_latest(StateDict& state);

  /// The same for a run that must go on: throws (incomplete) where there is nothing to go on from,
  /// for example because the root is mistyped.
  ResumedFrom resume(StateDict& state);

  /// Loads one iteration; the run goes on from there. Throws (incomplete) if it is not there.
  LoadReport load(StateDict& state, std::uint64_t iteration);

 private:
  void require_same_on_all_ranks(const std::string& attempt,
                                 std::optional<std::uint64_t> iteration = std::nullopt);
  SaveOptions prepare(std::uint64_t iteration);
  void record(std::uint64_t iteration, Communicator& comm);
  std::optional<ResumedFrom> load_if_any(StateDict& state);
  void require_descriptions(const StateDict& state);
  LoadReport load_from(const Location& checkpoint, StateDict& state);

  // Rank 0.
  void take_root();
  std::unique_ptr<StorageLock> lock_root() const;
  bool must_replace(std::uint64_t iteration);
  void warn_if_behind(std::uint64_t iteration);
  void remove_old(std::uint64_t saved);
  bool is_complete(std::uint64_t iteration);

  const Location root_;
  const Policy policy_;
  const SaveHooks hooks_;
  const std::string policy_text_;
  Communicator& comm_;
  SavePlanner planner_;
  LoadPlanner load_planner_;
  ShardedPaths sharded_paths_;             ///< of the state that was loaded last
  std::optional<std::uint64_t> loaded_;    ///< by this checkpointer, last
  std::optional<std::uint64_t> position_;  ///< of the run, once it has loaded something: the
                                           ///< iteration that was loaded or saved last

  // Rank 0.
  bool claimed_ = false;
  bool has_saved_ = false;
  std::unique_ptr<StorageLock> lock_;  ///< none where the storage has no locks
  std::set<std::uint64_t> known_complete_;

  std::unique_ptr<AsyncSaver> saver_;  ///< once there is something to save in the background; its
                                       ///< thread uses what stands above
};

}  // namespace dckpt
