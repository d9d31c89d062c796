#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "dist_checkpointing/save/sharded_paths.h"
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct Metadata;

/// The checkpoint that resume or load_latest loaded.
struct ResumedFrom {
  std::uint64_t iteration = 0;  ///< 0 for `release`
  Location directory;
  LoadReport report;
};

/// Manages the checkpoints of a training run: saves iterations under one root, keeps the tracker
/// file, finds the newest complete checkpoint, and removes old ones as the policy's `retention`
/// says. docs/checkpointer.md describes what happens to a root.
///
/// All functions are collective over the communicator, which must outlive the checkpointer: every
/// rank calls them in the same order with the same iteration, root and policy, which are compared.
/// All ranks return, or all throw the same CheckpointError. Only one thread may use it at a time.
/// Only rank 0 writes and removes anything other than data files.
class Checkpointer {
 public:
  /// Touches nothing on disk. `policy.save.overwrite` allows a save to replace a complete
  /// iteration. Throws CheckpointError, on this rank alone, for options that do not go together or
  /// that the strategy cannot honor, and for strategies that do not exist.
  Checkpointer(Location root, Policy policy, Communicator& comm, SaveHooks hooks = {});
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Claims the root for this job until the checkpointer is destroyed or rank 0's process ends:
  /// creates it, locks it, and removes leftovers of killed saves. The first save does the same;
  /// calling it when training starts shows at once if the root cannot be written or another job
  /// saves there. Jobs that only load do not need it. Throws CheckpointError: (aborted) if another
  /// job holds the root, (io).
  void claim();

  /// Saves `state` as the root's `iter_%07d`, names it in the tracker, then applies retention (a
  /// failure there is a warning). Replaces an incomplete iteration. Refuses to replace a complete
  /// one, unless this run has loaded an older iteration: the existing one then belongs to an
  /// abandoned history. Refuses (mismatch) a state that lacks tensors of the checkpoint that the
  /// run has resumed from, counted over all ranks, unless `allow` or the policy's
  /// `resume.allow_dropped_keys` permits it, and one that has tensors of that checkpoint which the
  /// run has never loaded, unless `allow` or `load.allow_unloaded` permits it. save.h describes
  /// states. With the policy's `save.async.enabled`, returns as save_async does. Otherwise the save
  /// is done when this returns, and wait() only returns the report.
  PendingSave save(const StateDict& state, std::uint64_t iteration, const AllowedOnce& allow = {});

  /// Does the same in the background and returns as soon as the state may change. With
  /// `save.async.snapshot: lazy` it returns earlier, and wait_staged() must be called before
  /// tensors change. Tracker and retention follow in the background too. The next call of any other
  /// function waits for the save. With `save.async.when_busy: skip`, a save that comes too early is
  /// skipped; with `replace`, it is queued, in place of one that is already queued. If the save
  /// failed and a rank has not asked for its outcome, the next call throws its error and does
  /// nothing else.
  PendingSave save_async(const StateDict& state, std::uint64_t iteration,
                         const AllowedOnce& allow = {});

  /// Waits for the background save, if there is one, and throws its error unless every rank has
  /// already asked for it.
  void wait();

  /// Calls PendingSave::wait_staged() for all background saves that have not ended. Call it before
  /// every optimizer step. Not collective.
  void wait_staged() const;

  /// Returns the iteration that load_latest() would resume from (0 for `release`), or nothing if
  /// the root is empty. Throws (incomplete) if it holds only unfinished checkpoints.
  std::optional<std::uint64_t> latest();

  /// Loads the latest complete checkpoint, as chosen by find_latest. If the root is empty, a new
  /// run starts: warns, returns an empty optional and leaves `state` unchanged. `state` keeps its
  /// descriptions (load.h), so the same tree can be saved next. A warning names the stored tensors
  /// that no rank has requested in this load or an earlier one of the same checkpoint.
  [[nodiscard]] std::optional<ResumedFrom> load_latest(StateDict& state);

  /// Does the same for a run that must continue: throws (incomplete) if there is nothing to resume
  /// from, for example because the root is mistyped.
  ResumedFrom resume(StateDict& state);

  /// Loads one iteration, from which the run continues. Throws (incomplete) if it does not exist.
  LoadReport load(StateDict& state, std::uint64_t iteration);

 private:
  void require_same_on_all_ranks(const std::string& attempt,
                                 std::optional<std::uint64_t> iteration = std::nullopt);
  void compare_arguments(const std::string& attempt, std::optional<std::uint64_t> iteration);
  SaveOptions prepare(std::uint64_t iteration);
  void record(std::uint64_t iteration, Communicator& comm);
  [[nodiscard]] std::optional<ResumedFrom> load_if_any(StateDict& state);
  void require_descriptions(const StateDict& state);
  [[nodiscard]] LoadReport load_from(const Location& checkpoint, StateDict& state);
  SaveHooks with_check(SaveHooks hooks);

  // Called on rank 0 only.
  void take_root();
  bool still_has_root();
  void require_same_tracker() const;
  void require_no_successor(const std::string& outcome) const;
  void give_back_tracker(std::uint64_t saved, const std::string& outcome);
  bool must_replace(std::uint64_t iteration);
  void warn_if_behind(std::uint64_t iteration);
  void remove_old(std::uint64_t saved);
  bool is_sound(std::uint64_t iteration);
  void set_known_complete(std::uint64_t iteration, bool complete);

  const Location root_;
  const Policy policy_;
  const SaveHooks hooks_;
  const std::string policy_text_;
  Communicator& comm_;
  SavePlanCache save_plans_;
  LoadPlanCache load_plans_;
  ShardedPaths sharded_paths_;           ///< sharded leaves of the last loaded state
  std::optional<std::uint64_t> loaded_;  ///< iteration that this checkpointer loaded last
  /// Guards `position_`, `lock_` and `known_complete_`: a save may begin while another ends.
  mutable std::mutex mutex_;
  std::optional<std::uint64_t> position_;  ///< iteration that the run loaded or saved last; empty
                                           ///< until it has loaded something

  // Used on rank 0 only.
  bool claimed_ = false;
  bool has_saved_ = false;
  AllowedOnce allowed_{};                      ///< by the running call of save()
  std::shared_ptr<const FoundTensors> found_;  ///< of the checkpoint that the run has loaded last
  std::unique_ptr<StorageLock> lock_;          ///< null if the storage has no locks
  std::string owner_;                          ///< the words that this job wrote into it
  /// The tracker named this when the run looked for a checkpoint to load; no value until then.
  std::optional<std::string> tracked_;
  std::uint64_t replaced_ = 0;  ///< FileInfo::id of the directory that a save may replace
  std::set<std::uint64_t> known_complete_;

  /// Null until the first background save; its thread uses the members above.
  std::unique_ptr<AsyncSaver> saver_;
};

}  // namespace dckpt
