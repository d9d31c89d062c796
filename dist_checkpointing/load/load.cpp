#include "dist_checkpointing/load/load.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/dropped_tensors.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/state_request.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// Returns the caller's tree, or the result of the trainer's preprocessing. A failed load leaves
/// the caller's tree unchanged.
StateDict preprocessed(const LoadCall& call, StateDict state) {
  if (call.hooks.preprocess)
    agree(call.comm, "preparing the state dict", [&] {
      state = run_foreign("LoadHooks::preprocess", {.rank = call.comm.rank()},
                          [&] { return call.hooks.preprocess(std::move(state)); });
      if (state.is_none()) state = Value::dict();
    });
  return state;
}

/// Returns the tree that a registered planner loads in its place.
StateDict planned(const LoadCall& call, const OpenedCheckpoint& from, StateDict state) {
  if (from.planned)
    agree(call.comm, "preparing the state dict",
          [&] { state = from.planned->prepared(state, from.metadata(), call.comm); });
  return state;
}

/// A rank requests a stored tensor in one of these ways; the largest of all ranks counts.
enum Requested : std::uint8_t {
  kNotRequested,
  kForOthers,  ///< a planner reads it for tensors of other names, under which it continues
  kForItself
};

/// Encodes what this rank requests of each stored tensor, in runs of equal values.
Bytes requested_by(const LoadCall& call, const OpenedCheckpoint& from, const TensorRequest& request,
                   const std::vector<std::string>& names) {
  std::vector<Requested> requested(names.size(), kNotRequested);
  for (const WantedShard& wanted : request.wanted) {
    const bool for_others = from.planned && from.planned->only_for_others(names[wanted.tensor]);
    requested[wanted.tensor] = for_others ? kForOthers : kForItself;
  }
  for (const std::string& key : call.report.left_out) {
    if (const auto position = from.keys.tensor(key)) requested[*position] = kForItself;
  }
  Bytes bytes;
  WireWriter writer(bytes);
  for (std::size_t begin = 0, end = 0; begin < requested.size(); begin = end) {
    while (end < requested.size() && requested[end] == requested[begin]) ++end;
    writer.number(end - begin);
    writer.number(requested[begin]);
  }
  return bytes;
}

/// Returns the largest values of all ranks.
std::vector<std::uint64_t> requested_by_any(const std::vector<Bytes>& ranks, std::size_t tensors) {
  std::vector<std::uint64_t> requested(tensors, kNotRequested);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    WireReader reader(ranks[rank], str_format("the request of rank {}", rank));
    for (std::size_t at = 0; at < tensors;) {
      std::uint64_t run = reader.number(tensors - at);
      if (run == 0) reader.malformed("a run of tensors is empty");
      const std::uint64_t value = reader.number(kForItself);
      for (; run > 0; --run, ++at) requested[at] = std::max(requested[at], value);
    }
    reader.finish();
  }
  return requested;
}

/// Finds out which tensors of the checkpoint some rank has requested, now or `before`, and warns of
/// the others: on rank 0.
void find_tensors(LoadCall& call, const OpenedCheckpoint& from, const TensorRequest& request,
                  const FoundTensors* before) {
  const std::vector<TensorStorageMetadata>& tensors = from.metadata().tensors;
  std::vector<std::string> names(tensors.size());
  Bytes mine;
  const auto failure = failure_of([&] {
    for (const std::string& name : from.keys.names()) {
      if (const auto position = from.keys.tensor(name)) names[*position] = name;
    }
    mine = requested_by(call, from, request, names);
  });
  agree(call.comm, "comparing the request with the checkpoint", failure, mine,
        [&](const std::vector<Bytes>& ranks) {
          FoundTensors found{.checkpoint = call.location.display(),
                             .tensors = {},
                             .allow_unloaded = call.options.allow_unloaded};
          std::unordered_set<std::string_view> known;
          if (before != nullptr && before->checkpoint == found.checkpoint) {
            for (const FoundTensor& tensor : before->tensors) {
              if (tensor.loaded) known.insert(tensor.key);
            }
          }
          const std::vector<std::uint64_t> requested = requested_by_any(ranks, tensors.size());
          for (std::size_t i = 0; i < tensors.size(); ++i) {
            if (names[i].empty() || tensors[i].nbytes() == 0 || requested[i] == kForOthers)
              continue;
            const bool loaded = requested[i] == kForItself || known.contains(names[i]);
            found.tensors.push_back({std::move(names[i]), tensors[i].nbytes(), loaded});
          }
          const bool told = std::ranges::any_of(call.report.findings, [](const Finding& finding) {
            return finding.code == FindingCode::kNothingRequested;
          });
          if (!told && call.options.strict != StrictHandling::kIgnoreAll)
            tell_unloaded(found, call.report.findings);
          call.report.found = std::make_shared<const FoundTensors>(std::move(found));
          return Bytes();
        });
}

/// Logs the report on rank 0.
void tell(const LoadCall& call) {
  if (call.comm.rank() != 0) return;
  log_info(str_format("loaded {}: {}", quote(call.location.display()), to_string(call.report)));
}

/// `before`: see load_more().
LoadReport load_into(StateDict& state, LoadCall& call, const FoundTensors* before = nullptr) {
  if (state.is_none()) state = Value::dict();  // the value of StateDict()
  call.plan_cache->begin(call.options.parallel.enabled ? "a single rank" : "load.parallel is off");
  StateDict target = preprocessed(call, state);
  const OpenedCheckpoint from = open_for(Call::kLoad, call);
  target = planned(call, from, std::move(target));
  StateRequest request = request_state(call, from, target);
  find_tensors(call, from, request.read.tensors, before);
  const ReadObjects objects = read_request(call, from, request.read);
  finish_load(call, [&] { target = merged(call, from, target, std::move(request), objects); });
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

LoadReport load_more(StateDict& state, const Location& location, const LoadOptions& options,
                     Communicator& comm, LoadPlanCache& cache, const FoundTensors* before) try {
  LoadCall call(location, options, comm, {}, &cache);
  return load_into(state, call, before);
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
