#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/policy/option_rules.h"
#include "configs/policy/options.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "dist_checkpointing/load/planned_load.h"
#include "dist_checkpointing/load/requested_shapes.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "dist_checkpointing/load/tensor_request.h"
#include "mapping/base/phase_clock.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/comm/phase_label.h"
#include "strategies/parallel/load_plan_cache.h"
#include "strategies/storage/location.h"

namespace dckpt {

// A load, as every rank runs it: open_for() → a request → read_request() → finish_load(). The entry
// points (load, load_plain, load_state_dict, …) differ in their requests and in how they use the
// result. Each step is collective and hands on values; the protocol is at the top of
// load_steps.cpp. If a step throws, it throws the same CheckpointError on every rank.

/// The form of sharded and local leaves after a load.
enum class Leaves : std::uint8_t {
  kDescribed,  ///< the same descriptions, with data: the tree can be saved and loaded again
  kPlain,      ///< tensors and values, as Megatron returns them
};

/// Time limit, cancellation and progress of one load, starting with its construction.
class LoadWatch {
 public:
  /// `hooks` must outlive it.
  LoadWatch(Communicator& comm, const LoadOptions& options, const LoadHooks& hooks)
      : heartbeat(comm, {.timeout = options.timeout, .cancel = hooks.cancel}),
        timeout_(options.timeout),
        hooks_(hooks) {}

  /// Checks for cancellation within work of one rank between collectives: throws CheckpointError
  /// (cancelled) if this rank is to stop, (unavailable) if the time is over.
  void check() const;
  /// Reports how many bytes have arrived so far, and how many will. Also calls check().
  void arrived(std::uint64_t bytes, std::uint64_t total);
  bool follows_tensors() const noexcept { return static_cast<bool>(hooks_.tensor_ready); }
  void ready(const std::string& key, const Tensor& tensor);  ///< requires follows_tensors()

  Heartbeat heartbeat;

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::chrono::milliseconds timeout_;
  const LoadHooks& hooks_;
  std::mutex telling_;
};

/// The arguments of a load on this rank, its clocks, and its report so far. The referenced objects
/// must outlive it.
struct LoadCall {
  /// `cache` may be null.
  LoadCall(const Location& location, const LoadOptions& options, Communicator& comm,
           LoadHooks hooks = {}, LoadPlanCache* cache = nullptr);

  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const PhaseLabel label{"loading the checkpoint"};
  const Location& location;
  const LoadOptions& options;
  Communicator& comm;
  const LoadHooks hooks;
  LoadPlanCache* const plan_cache;
  Leaves leaves = Leaves::kDescribed;
  LoadWatch watch;
  PhaseClock phases;
  std::optional<PhaseClock::Scope> opening{};  ///< Phase::kOpen, until tensor bytes move
  LoadReport report{};
};

/// A checkpoint that is open on this rank and whose files are those of its manifest.
struct OpenedCheckpoint {
  const LoadOptions& options;                 ///< options of the call
  std::unique_ptr<PlannedLoad> planned{};     ///< set if a registered planner loads, else null
  std::unique_ptr<RequestedShapes> reader{};  ///< may read through `planned`
  StoredKeys keys{};
  Value common{};  ///< set for load() only

  const Metadata& metadata() const { return reader->metadata(); }
  /// True if leaves are stored under their paths, and so are values that are not sharded.
  bool is_plain_dcp() const {
    return reader->info().conventions.keys_are_paths && common.is_none();
  }
};

/// Opens the checkpoint, compares it and the arguments of the ranks.
OpenedCheckpoint open_for(Call entry, LoadCall& call);

/// The tensors and objects that this rank reads.
struct ReadRequest {
  TensorRequest tensors{};
  std::vector<std::uint32_t> objects{};  ///< positions in the metadata
};

/// The values of objects by their positions in the metadata.
using ReadObjects = std::unordered_map<std::uint32_t, Value>;

/// Fills the destinations of the tensors, and returns the objects. Throws the same CheckpointError
/// on all ranks if rank 0 has findings that load.error_on names. If it throws, destinations are
/// partly filled.
ReadObjects read_request(LoadCall& call, const OpenedCheckpoint& from, const ReadRequest& request);

/// Runs `work`, which assembles the result; the ranks exchange their phase times for the report.
void finish_load(LoadCall& call, const std::function<void()>& work);

}  // namespace dckpt
