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
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct FoundTensor;
struct Metadata;

/// What resume or load_latest loaded.
struct ResumedFrom {
  std::uint64_t iteration = 0;  ///< 0 for `release`
  Location directory;
  LoadReport report;
};

/// What a single save may do beyond what the policy allows.
struct AllowedOnce {
  bool dropped_keys = false;  ///< ResumeOptions::allow_dropped_keys
};

/// The checkpoints of a training run: saves iterations under one root, keeps the tracker file,
/// finds the newest complete checkpoint, and removes old ones as the policy's `retention` says.
/// docs/checkpointer.md describes what happens to a root.
///
/// All functions are collective over the communicator, which must outlive the checkpointer: every
/// rank calls them in the same order with the same iteration, and has the same root and policy,
/// which are compared. All ranks return, or all throw the same CheckpointError. One thread at a
/// time. Only rank 0 writes and removes anything other than data files.
class Checkpointer {
 public:
  /// Touches nothing on disk. `policy.save.overwrite` allows a save to replace an iteration that is
  /// complete. Throws CheckpointError, on this rank alone, for options that do not go together or
  /// that the strategy cannot honour, and for strategies that do not exist.
  Checkpointer(Location root, Policy policy, Communicator& comm, SaveHooks hooks = {});
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Claims the root for this job until the checkpointer is destroyed or rank 0's process ends:
  /// creates it, locks it, and removes leftovers of killed saves. The first save does the same;
  /// calling it when training starts shows at once if the root cannot be written or another job
  /// saves there. Jobs that only load do not need it. Throws (aborted) if another job has the root,
  /// (io).
  void claim();

  /// Saves `state` as the root's `iter_%07d`, names it in the tracker, then applies retention (a
  /// failure there is a warning). Refuses to replace a complete iteration, unless this run has gone
  /// back: it has loaded an older iteration, so the existing one belongs to a history that it has
  /// abandoned. An incomplete one is replaced. Refuses (mismatch) a state that lacks tensors of the
  /// checkpoint that the run has resumed from, counted over all ranks, unless `allow` or the
  /// policy's `resume.allow_dropped_keys` says so. See save.h for what a state is. With the
  /// policy's `save.async.enabled` it returns as save_async does. Otherwise the save is done when
  /// this returns, and wait() only returns the report.
  PendingSave save(const StateDict& state, std::uint64_t iteration, const AllowedOnce& allow = {});

  /// The same in the background: returns as soon as the state may change; with
  /// `save.async.snapshot: lazy` before that, and wait_staged() is to be called before tensors
  /// change. Tracker and retention follow in the background too. The next call of any other
  /// function waits for it, except that with `save.async.when_busy: skip` a save that comes too
  /// early is skipped, and with `replace` it is queued, in place of one that is queued already. If
  /// it failed and a rank has not asked for its outcome, the next call throws its error and does
  /// nothing else.
  PendingSave save_async(const StateDict& state, std::uint64_t iteration,
                         const AllowedOnce& allow = {});

  /// Waits for the background save, if there is one, and throws its error unless every rank has
  /// already asked for it.
  void wait();

  /// PendingSave::wait_staged() of all background saves that have not ended; call it before every
  /// optimizer step. Not collective.
  void wait_staged() const;

  /// The iteration that load_latest() would resume from (0 for `release`); empty if the root holds
  /// nothing. Throws (incomplete) if it holds only unfinished checkpoints.
  std::optional<std::uint64_t> latest();

  /// Loads the latest complete checkpoint, as chosen by find_latest. If the root holds nothing,
  /// warns, returns an empty optional and leaves `state` unchanged: a new run starts. `state` keeps
  /// its descriptions (load.h), so the same tree can be saved next. A warning names the stored
  /// tensors that no rank requests.
  [[nodiscard]] std::optional<ResumedFrom> load_latest(StateDict& state);

  /// The same for a run that must continue: throws (incomplete) if there is nothing to resume from,
  /// for example because the root is mistyped.
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

  // Rank 0.
  void take_root();
  [[nodiscard]] std::unique_ptr<StorageLock> lock_root() const;
  bool still_has_root();
  bool must_replace(std::uint64_t iteration);
  void warn_if_behind(std::uint64_t iteration);
  void remove_old(std::uint64_t saved);
  bool is_complete(std::uint64_t iteration);
  void set_known_complete(std::uint64_t iteration, bool complete);
  void remember_found(const Location& checkpoint, std::vector<FoundTensor> found);
  void require_nothing_dropped(const Metadata& planned, const Value* common) const;

  const Location root_;
  const Policy policy_;
  const SaveHooks hooks_;
  const std::string policy_text_;
  Communicator& comm_;
  SavePlanCache save_plans_;
  LoadPlanCache load_plans_;
  ShardedPaths sharded_paths_;           ///< of the state that was loaded last
  std::optional<std::uint64_t> loaded_;  ///< by this checkpointer, last
  std::mutex mutex_;  ///< of `position_` and `known_complete_`: a save may begin while another ends
  std::optional<std::uint64_t> position_;  ///< of the run, once it has loaded something: the
                                           ///< iteration that was loaded or saved last

  // Rank 0.
  bool claimed_ = false;
  bool has_saved_ = false;
  bool may_drop_ = false;              ///< the call of save that runs allows it
  std::string resumed_from_;           ///< for messages
  std::vector<FoundTensor> found_;     ///< in it
  std::unique_ptr<StorageLock> lock_;  ///< none where the storage has no locks
  std::set<std::uint64_t> known_complete_;

  std::unique_ptr<AsyncSaver> saver_;  ///< once there is something to save in the background; its
                                       ///< thread uses what stands above
};

}  // namespace dckpt
