#pragma once

#include <cstdint>
#include <memory>

#include "configs/options.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "mapping/base/api.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// How far a load in the background is on this rank, in bytes of its tensors; 0 of 0 until they are
/// known.
struct LoadProgress {
  std::uint64_t arrived = 0;
  std::uint64_t total = 0;

  friend bool operator==(const LoadProgress&, const LoadProgress&) = default;
};

/// A load in the background. Cheap to copy; may outlive the loader; safe to use from several
/// threads.
class PendingLoad {
 public:
  /// Whether it has ended, successfully or not.
  bool done() const;
  LoadProgress progress() const;
  /// Waits for the end and puts the loaded tree in place of `state`: once, by one caller. Throws
  /// what the load threw, the same CheckpointError on every rank; `state` stays as it is then, but
  /// memory that was to be filled is partly filled.
  LoadReport wait(StateDict& state) const;
  /// Asks all ranks to stop and returns at once; calling it on one rank is enough. If it came in
  /// time, wait() throws CheckpointError (cancelled).
  void cancel() const noexcept;

 private:
  friend class AsyncLoader;
  struct Outcome;
  explicit PendingLoad(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  std::shared_ptr<Outcome> outcome_;
};

/// Loads in the background, one after the other, while a trainer builds what the loaded state goes
/// into. One object per rank, used by one thread.
///
///   AsyncLoader loader(comm);
///   PendingLoad pending = loader.load(sharded_state(), "run/iter_0001000", policy.load);
///   …                                        // no tensor of that state may be used meanwhile
///   pending.wait(state);
class AsyncLoader {
 public:
  /// Collective: a communicator of its own is split off from `comm`, which must outlive it.
  explicit AsyncLoader(Communicator& comm);
  /// Waits for the running load, however it ends.
  ~AsyncLoader();
  AsyncLoader(const AsyncLoader&) = delete;
  AsyncLoader& operator=(const AsyncLoader&) = delete;

  /// Like dckpt::load() in a thread of its own. If the load before still runs, waits for it.
  /// `state` shares its tensors with the caller's. Every rank calls it, in the same order. The
  /// hooks are called in the background.
  PendingLoad load(StateDict state, const Location& location, const LoadOptions& options = {},
                   LoadHooks hooks = {});

 private:
  struct Running;
  std::unique_ptr<Communicator> comm_;
  LoadPlanCache plans_;
  std::unique_ptr<Running> running_;
};

}  // namespace dckpt
