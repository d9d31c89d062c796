#include "dist_checkpointing/load/load.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/found_tensors.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/loaders.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// Returns the caller's tree, or the result of the trainer's preprocessing. A failed load leaves
/// the caller's tree unchanged.
StateDict preprocessed(const LoadCall& call, StateDict state) {
  if (call.hooks.preprocess)
    agree(call.comm, "preparing the state dict", [&] {
      state = call.hooks.preprocess(std::move(state));
      if (state.is_none()) state = Value::dict();
    });
  return state;
}

/// Returns the tree that a registered planner loads in its place.
StateDict planned(const LoadCall& call, const OpenedCheckpoint& from, StateDict state) {
  if (from.planned)
    agree(call.comm, "preparing the state dict",
          [&] { state = from.planned->prepared(state, from.metadata(), call.options, call.comm); });
  return state;
}

/// Returns on rank 0 the checkpoint's tensors, in the order of the metadata, with the requests of
/// all ranks. Tensors that a planner has read only for other names are left out, since they
/// continue under those names.
std::vector<FoundTensor> find_tensors(const LoadCall& call, const OpenedCheckpoint& from,
                                      const TensorRequest& request) {
  constexpr std::int64_t kForOthers = 1;  // requests under its own name have a larger number
  const std::vector<TensorStorageMetadata>& tensors = from.metadata().tensors;
  std::vector<std::string> names(tensors.size());
  for (const std::string& name : from.keys.names()) {
    if (const auto position = from.keys.tensor(name)) names[*position] = name;
  }
  std::vector<std::int64_t> requested(tensors.size());
  for (const WantedShard& wanted : request.wanted) {
    const bool for_others = from.planned && from.planned->only_for_others(names[wanted.tensor]);
    requested[wanted.tensor] = for_others ? kForOthers : kForOthers + 1;
  }
  requested = call.comm.all_reduce(std::move(requested), ReduceOp::kMax);
  if (call.comm.rank() != 0) return {};
  std::vector<FoundTensor> found;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!names[i].empty() && tensors[i].nbytes() != 0 && requested[i] != kForOthers)
      found.push_back({std::move(names[i]), tensors[i].nbytes(), requested[i] != 0});
  }
  return found;
}

/// Logs the report on rank 0.
void tell(const LoadCall& call) {
  if (call.comm.rank() != 0) return;
  log_info(str_format("loaded {}: {}", quote(call.location.display()), to_string(call.report)));
}

/// `found` may be null.
LoadReport load_into(StateDict& state, LoadCall& call, std::vector<FoundTensor>* found = nullptr) {
  if (state.is_none()) state = Value::dict();  // the value of StateDict()
  call.plan_cache->begin(call.options.parallel.enabled ? "a single rank" : "load.parallel is off");
  StateDict target = preprocessed(call, state);
  const OpenedCheckpoint from = open_for(Call::kLoad, call);
  target = planned(call, from, std::move(target));
  const auto load_requested = [&](auto request) {
    const ReadObjects objects = read_request(call, from, request.read);
    finish_load(call,
                [&] { target = merged(call, from, target, std::move(request.of_state), objects); });
    if (found != nullptr) *found = find_tensors(call, from, request.read.tensors);
  };
  if (from.is_plain_dcp())
    load_requested(request_by_paths(call, from, target));
  else
    load_requested(request_by_keys(call, from, target));
  state = std::move(target);
  tell(call);
  return std::move(call.report);
}

}  // namespace

std::string to_string(const LoadReport& report) {
  return str_format("{:.2f} s ({}; {}, {}; {}{}, rank {} was the last)", report.seconds,
                    to_string(Phase::kOpen, report.open),
                    to_string(Phase::kExchange, report.exchange),
                    report.plan_cached ? "cached" : "not cached: " + report.why_planned,
                    to_string(Phase::kRead, report.read),
                    report.engine.empty() ? "" : ", " + report.engine, report.read.slowest_rank);
}

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, LoadPlanCache& cache, const LoadHooks& hooks) try {
  LoadCall call(location, options, comm, hooks, &cache);
  return load_into(state, call);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options,
                Communicator& comm, const LoadHooks& hooks) {
  LoadPlanCache once;
  return load(state, location, options, comm, once, hooks);
}

LoadReport load(StateDict& state, const Location& location, const LoadOptions& options) {
  const auto alone = single_rank();
  return load(state, location, options, *alone);
}

LoadReport load_and_find(StateDict& state, const Location& location, const LoadOptions& options,
                         Communicator& comm, LoadPlanCache& cache,
                         std::vector<FoundTensor>& found) try {
  LoadCall call(location, options, comm, {}, &cache);
  return load_into(state, call, &found);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options,
                      Communicator& comm) try {
  LoadPlanCache once;
  LoadCall call(location, options, comm, {}, &once);
  call.leaves = Leaves::kPlain;
  return load_into(state, call);
} catch (...) {
  throw_checkpoint_error();
}

LoadReport load_plain(StateDict& state, const Location& location, const LoadOptions& options) {
  const auto alone = single_rank();
  return load_plain(state, location, options, *alone);
}

}  // namespace dckpt
