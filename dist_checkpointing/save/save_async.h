#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/api.h"
#include "mapping/planning/save/plan_cache.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

class StagingPool;

/// Progress of a background save on this rank, in bytes of its tensors.
struct SaveProgress {
  std::uint64_t released = 0;  ///< no longer needed from the state: copied or written
  std::uint64_t written = 0;
  std::uint64_t total = 0;

  friend bool operator==(const SaveProgress&, const SaveProgress&) = default;
};

/// A background save. Cheap to copy; may outlive the saver; safe to use from several threads. In a
/// fork of its process the save never ends: it counts as done, cancel() has no effect, and waiting
/// for it throws CheckpointError (unavailable).
class PendingSave {
 public:
  /// Returns whether it has finished, successfully or not.
  bool done() const;
  /// Returns whether it never began, because another one was running (WhenBusy::kSkip). The same on
  /// every rank.
  bool skipped() const;
  /// Returns whether it never began, because a later one took its place (WhenBusy::kReplace). The
  /// same on every rank.
  bool replaced() const;
  /// Returns as soon as this rank's tensors may change; with Snapshot::kEager they may change as
  /// soon as save() has returned. Not collective. Also returns if the save has failed or was
  /// cancelled; wait() throws those errors.
  void wait_staged() const;
  /// Returns all zeros for a foreground save and for one that was skipped.
  SaveProgress progress() const;
  /// Returns the report once the checkpoint is complete and visible. Throws the error of the save,
  /// the same CheckpointError on every rank; for a skipped or replaced save, that is (cancelled).
  SaveReport wait() const;
  /// Asks all ranks to stop and returns at once; calling it on one rank is enough. If the request
  /// came in time, wait() throws CheckpointError (cancelled) and nothing is left of the save. This
  /// rank's tensors are released at once.
  void cancel() const noexcept;

 private:
  friend class AsyncSaver;
  friend class Checkpointer;
  /// Makes the result of a foreground save that has succeeded.
  explicit PendingSave(SaveReport report);
  [[nodiscard]] static PendingSave skip(const Location& location, const Communicator& comm);
  struct Outcome;
  explicit PendingSave(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  std::shared_ptr<Outcome> outcome_;
};

/// Runs background saves, one after the other. Each rank has one object, used by one thread.
///
///   AsyncSaver saver(policy.save, comm);
///   PendingSave pending = saver.save(state, "run/iter_0001000");   // returns after one copy
///   …                                                               // train: tensors may change
///   pending.wait();                                                 // or continue training
///
/// With Snapshot::kLazy, save() returns before that copy, which a background thread makes:
///
///   saver.save(state, "run/iter_0001000");
///   …                                        // forward and backward: tensors must not change
///   saver.wait_staged();                     // every step: returns at once if nothing is pending
///   optimizer.step();
///
/// Tensors that change too early are stored as a mixture of old and new elements, which cannot be
/// detected. Objects and the common state are copied before save() returns in any case. save(),
/// wait() and the destructor wait for the previous save, and so for its copy.
///
/// With WhenBusy::kReplace, save() does not wait for the previous save to be written: the new one
/// is copied as usual and queued. At most one save is queued: a later one takes its place on all
/// ranks once it has been planned, unless the queued one has begun to be written on any of them. A
/// save that cannot be planned replaces nothing. A replaced save releases its tensors before save()
/// returns; nothing of it is published, even if the new one fails later.
///
/// Copies take at most `options.async.staging_memory` bytes, which are reused across saves; with
/// WhenBusy::kReplace, half of them is for the running save, half for the queued one. Data that
/// does not fit at once is written from the tensors themselves, or copied when there is room,
/// before they may change. Threads that write have a lower priority than the caller (nice 10). The
/// ranks communicate over communicators of their own, split off from `comm`.
class AsyncSaver {
 public:
  /// Collective. `comm` is used for splitting, by busy() and, unless WhenBusy::kWait, by save(). It
  /// must outlive the saver, and so must `cache`, which nothing else may use while a save runs; if
  /// it is null, the saver has its own. With WhenBusy::kReplace, saves that are planned while
  /// others run begin with the current content of `cache`.
  AsyncSaver(SaveOptions options, Communicator& comm, SaveHooks hooks = {},
             SavePlanCache* cache = nullptr);
  /// Waits for the running save and the queued one, however they end.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Saves like dckpt::save(), but returns as soon as the state may change, or earlier with
  /// Snapshot::kLazy. If the previous save still runs on any rank, waits for it first, or with
  /// WhenBusy::kSkip saves nothing and returns a PendingSave that says so, or with
  /// WhenBusy::kReplace queues this one. If an earlier one failed and a rank has not asked for its
  /// outcome, throws its error and saves nothing. Collective. Once the checkpoint is visible,
  /// `published` runs in the background on every rank. It may use the communicator that it is
  /// given; if it throws, the save fails with that error.
  PendingSave save(const StateDict& state, const Location& location,
                   std::function<void(Communicator&)> published = {});
  /// Does the same, but `overwrite` replaces SaveOptions::overwrite.
  PendingSave save(const StateDict& state, const Location& location, bool overwrite,
                   std::function<void(Communicator&)> published);

  /// Waits for the running save and the queued one, which is collective; returns at once if there
  /// are none. Throws the first error on all ranks, unless every rank has already asked for it.
  void wait();
  /// Calls PendingSave::wait_staged() for all saves that have not ended. Not collective.
  void wait_staged() const;
  /// Returns whether a save still runs on any rank. Collective.
  bool busy();

 private:
  struct Job;
  struct Slot;
  struct Turns;
  void require_its_process() const;
  void settle(std::size_t count);
  void settle_ended();
  void make_room(const Location& location);
  bool replace_queued(const Location& by);
  void copy_state(Job& job);
  Slot& free_slot();
  StagingPool& free_pool();

  SaveOptions options_;
  SaveHooks hooks_;
  Communicator& callers_;                     ///< communicator of the thread that saves
  std::vector<std::unique_ptr<Slot>> slots_;  ///< one more than the saves that are copied
  std::vector<std::unique_ptr<StagingPool>> pools_;
  std::unique_ptr<Turns> turns_;
  /// Saves whose outcome is not settled, in the order in which they are written; the same on every
  /// rank. At most one per pool.
  std::deque<std::unique_ptr<Job>> jobs_;
};

}  // namespace dckpt
