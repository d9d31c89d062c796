#pragma once

#include <cstdint>
#include <memory>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "mapping/base/api.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Progress of a background load on this rank, in bytes of its tensors; 0 of 0 until the sizes are
/// known.
struct LoadProgress {
  std::uint64_t arrived = 0;
  std::uint64_t total = 0;

  friend bool operator==(const LoadProgress&, const LoadProgress&) = default;
};

class AsyncLoader;

/// A background load. Cheap to copy; may outlive the loader; safe to use from several threads.
class PendingLoad {
 public:
  /// True once the load has ended, successfully or not.
  bool done() const;
  LoadProgress progress() const;
  /// Waits for the end and puts the loaded tree in place of `state`. Only one caller may call it,
  /// once. Throws the error of the load, the same CheckpointError on every rank; `state` is then
  /// unchanged, but memory that was to be filled is partly filled.
  LoadReport wait(StateDict& state) const;
  /// Asks all ranks to stop and returns at once; calling it on one rank is enough. If the request
  /// came in time, wait() throws CheckpointError (cancelled).
  void cancel() const noexcept;

 private:
  friend class AsyncLoader;
  struct Outcome;
  friend PendingLoad load_async(StateDict state, const Location& location,
                                const LoadOptions& options, Communicator& comm, LoadHooks hooks);
  explicit PendingLoad(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  std::shared_ptr<Outcome> outcome_;
  std::shared_ptr<AsyncLoader> loader_{};  ///< of load_async()
};

/// Loads in the background, one checkpoint after the other, while a trainer builds the model that
/// the loaded state goes into. Each rank has one object, used by one thread.
///
///   AsyncLoader loader(comm);
///   PendingLoad pending = loader.load(sharded_state(), "run/iter_0001000", policy.load);
///   …                                        // no tensor of that state may be used meanwhile
///   pending.wait(state);
class AsyncLoader {
 public:
  /// Splits a communicator of its own off from `comm`, which must outlive it. Collective.
  explicit AsyncLoader(Communicator& comm);
  /// Waits for the running load, however it ends.
  ~AsyncLoader();
  AsyncLoader(const AsyncLoader&) = delete;
  AsyncLoader& operator=(const AsyncLoader&) = delete;

  /// Loads like dckpt::load() in a thread of its own. If the previous load still runs, waits for
  /// it. `state` shares its tensors with the caller's. Every rank calls it, in the same order. The
  /// hooks are called in the background.
  PendingLoad load(StateDict state, const Location& location, const LoadOptions& options = {},
                   LoadHooks hooks = {});

 private:
  struct Running;
  std::unique_ptr<Communicator> comm_;
  LoadPlanCache plans_;
  std::unique_ptr<Running> running_;
};

/// Starts one background load; the last copy of the result waits for its end. Collective. `comm`
/// must outlive it.
[[nodiscard]] PendingLoad load_async(StateDict state, const Location& location,
                                     const LoadOptions& options, Communicator& comm,
                                     LoadHooks hooks = {});

}  // namespace dckpt
