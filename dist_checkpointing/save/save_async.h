#pragma once

#include <functional>
#include <memory>

#include "configs/options.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/api.h"
#include "mapping/planning/save/plan_cache.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"
#include "strategies/tensor_io/staging_pool.h"

namespace DCKPT_API dckpt {

/// A background save. Cheap to copy; may outlive the saver; safe to use from several threads.
class PendingSave {
 public:
  /// Whether it has finished, successfully or not.
  bool done() const;
  /// Returns the report once the checkpoint is complete and visible. Throws what the save threw,
  /// the same CheckpointError on every rank.
  SaveReport wait() const;
  /// Asks all ranks to stop and returns at once; calling it on one rank is enough. If it came in
  /// time, wait() throws CheckpointError (cancelled) and nothing is left of the save.
  void cancel() const noexcept;

 private:
  friend class AsyncSaver;
  friend class Checkpointer;
  /// For a foreground save that has succeeded.
  explicit PendingSave(SaveReport report);
  struct Outcome;
  explicit PendingSave(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  std::shared_ptr<Outcome> outcome_;
};

/// Runs background saves, one after the other. One object per rank, used by one thread.
///
///   AsyncSaver saver(policy.save, comm);
///   PendingSave pending = saver.save(state, "run/iter_0001000");   // returns after one copy
///   …                                                               // train: tensors may change
///   pending.wait();                                                 // or go on
///
/// The staging pool holds at most `options.async.staging_memory` bytes and is reused across saves.
/// If a rank has more, writing starts before save() returns. The ranks communicate over their own
/// communicator, split off from `comm`.
class AsyncSaver {
 public:
  /// Collective. `comm` is only used for splitting, but must outlive the saver, and so must
  /// `cache`, which nothing else uses while a save runs; if it is null, the saver has its own.
  AsyncSaver(SaveOptions options, Communicator& comm, SaveHooks hooks = {},
             SavePlanCache* cache = nullptr);
  /// Waits for the running save, however it ends.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Like dckpt::save(), but returns as soon as the state may change. Waits for the previous save
  /// first; if that one failed and a rank has not asked for its outcome, throws its error and saves
  /// nothing. Collective. Once the checkpoint is visible, `published` runs in the background on
  /// every rank. It may use the communicator that it is given; if it throws, the save fails with
  /// that error.
  PendingSave save(const StateDict& state, const Location& location,
                   std::function<void(Communicator&)> published = {});
  /// The same, with `overwrite` in place of that of the options.
  PendingSave save(const StateDict& state, const Location& location, bool overwrite,
                   std::function<void(Communicator&)> published);

  /// Waits for the running save, which is collective; returns at once if there is none. Throws its
  /// error on all ranks, unless every rank has already asked for it.
  void wait();

 private:
  struct Job;
  void settle();

  SaveOptions options_;
  SaveHooks hooks_;
  std::unique_ptr<Communicator> comm_;
  SavePlanCache own_cache_;
  SavePlanCache& plan_cache_;
  StagingPool pool_;
  std::unique_ptr<Job> job_;
};

}  // namespace dckpt
