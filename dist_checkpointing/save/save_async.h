#pragma once

#include <functional>
#include <memory>

#include "configs/options.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/planning/save_planner.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"
#include "strategies/tensor_io/staging_pool.h"

namespace dckpt {

/// A save that goes on in the background. Cheap to copy; may outlive the saver; safe to use from
/// several threads.
class PendingSave {
 public:
  /// Whether it has ended, well or not.
  bool done() const;
  /// Returns when the checkpoint is complete and visible, and says what was done. Throws what the
  /// save threw: the same CheckpointError on every rank.
  SaveReport wait() const;
  /// Asks all ranks to stop and returns at once; wait() tells whether it came in time: it throws
  /// CheckpointError (cancelled) then, and nothing is left of the save. Calling it on one rank is
  /// enough.
  void cancel() const noexcept;

 private:
  friend class AsyncSaver;
  friend class Checkpointer;
  /// Of a save in the foreground, which has succeeded.
  explicit PendingSave(SaveReport report);
  struct Outcome;
  explicit PendingSave(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  std::shared_ptr<Outcome> outcome_;
};

/// Saves in the background, one after the other. One per rank, used by one thread.
///
///   AsyncSaver saver(policy.save, comm);
///   PendingSave pending = saver.save(state, "run/iter_0001000");   // returns after one copy
///   …                                                               // train: tensors may change
///   pending.wait();                                                 // or go on
///
/// The copies take at most `options.async.staging_memory` bytes, which are kept from save to save:
/// a rank that has more to write starts writing before save() returns. The ranks talk over a
/// communicator of their own, split off `comm`.
class AsyncSaver {
 public:
  /// Collective. `comm` is used for splitting only, but must stay alive as long as the saver.
  AsyncSaver(SaveOptions options, Communicator& comm, SaveHooks hooks = {});
  /// Waits for the save that is going on, however it ends.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// As dckpt::save(), but returns as soon as the state may change. Waits for the save before; if
  /// that one failed and a rank has not asked for its outcome, throws its error and saves nothing.
  /// Collective. `published` runs in the background on every rank once the checkpoint is visible;
  /// it may use the communicator that it is given, and what it throws is the outcome of the save.
  PendingSave save(const StateDict& state, const Location& location,
                   std::function<void(Communicator&)> published = {});
  /// The same with another `overwrite` than the options have.
  PendingSave save(const StateDict& state, const Location& location, bool overwrite,
                   std::function<void(Communicator&)> published);

  /// Waits for the save that is going on, if any: collective then, else it returns at once. Throws
  /// its error, on all ranks, unless every rank has asked for it.
  void wait();

 private:
  struct Job;
  void settle();

  SaveOptions options_;
  SaveHooks hooks_;
  std::unique_ptr<Communicator> comm_;
  SavePlanner planner_;
  StagingPool pool_;
  std::unique_ptr<Job> job_;
};

}  // namespace dckpt
