// The protocol of a transfer. Collectives are marked with *.
//
//   1* agree        every rank describes what it holds and wants
//   2* all_reduce   whether all ranks remember the plan of the last transfer for the same; if they
//                   do, they go on with step 5
//   3* gather       rank 0 gets the layouts and plans; an error is thrown on all ranks (decide)
//   4* scatter      every rank gets its program, and decodes it in the agree of step 5
//   5* agree        memory for tensors of `to` that have none
//   6* rounds       run_transfer
//   7* agree        `to` gets its tensors

#include "transfer/transfer.h"

#include <array>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/save/messages.h"
#include "mapping/state/destination.h"
#include "mapping/state/overlaps.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/device/registry.h"
#include "strategies/parallel/request.h"
#include "transfer/run_transfer.h"

namespace dckpt {

/// The layouts of a rank, and its part of the plan for them.
struct TransferCache::Content {
  Bytes layouts;            ///< this rank's message
  std::int64_t number = 0;  ///< of the plan: a hash of all ranks' messages, positive
  TransferProgram program{};
};

TransferCache::TransferCache() noexcept = default;
TransferCache::~TransferCache() = default;
TransferCache::TransferCache(TransferCache&& other) noexcept = default;
TransferCache& TransferCache::operator=(TransferCache&& other) noexcept = default;

const TransferCache::Content& TransferCache::remember(Content content) {
  content_ = std::make_unique<const Content>(std::move(content));
  return *content_;
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One side of a transfer on this rank.
struct End {
  explicit End(const StateDict& state) {
    if (state.is_none()) return;
    parts = split_for_load(state);
    const ShardedLeaves leaves = collect_sharded(parts.expanded);
    std::vector<LocalShard> specs;
    for (const ShardedTensor* const shard : leaves.tensors) {
      specs.emplace_back(shard_spec(*shard));
      std::get<TensorShard>(specs.back()).source = static_cast<std::uint32_t>(shards.size());
      shards.push_back(*shard);
      tensors.push_back(shard->data.value_or(Tensor::meta(shard->dtype, shard->data_shape())));
    }
    if (!leaves.objects.empty()) object = leaves.objects.front()->unique_key();
    layout = plan_local_save(specs, FlattenedForm::kBoxes);
  }

  LoadRequest parts{};
  std::vector<ShardedTensor> shards{};  ///< in the order of the tree
  std::vector<Tensor> tensors{};        ///< theirs
  TransferLayout layout{};              ///< `source` is a position in `shards`
  std::optional<std::string> object{};  ///< the key of a ShardedObject
};

Bytes encode_layouts(const End& from, const End& to, std::uint64_t budget) {
  const Bytes held = encode_plan(from.layout);
  const Bytes wanted = encode_plan(to.layout);
  Bytes message;
  append_le(message, budget);
  append_le(message, static_cast<std::uint64_t>(held.size()));
  message.insert(message.end(), held.begin(), held.end());
  message.insert(message.end(), wanted.begin(), wanted.end());
  return message;
}

/// Plans on rank 0; `smallest` becomes the smallest budget of all ranks.
TransferPlan plan_from(std::span<const Bytes> messages, std::uint64_t& smallest) {
  constexpr std::size_t kHead = 2 * sizeof(std::uint64_t);
  TransferPlanner planner(static_cast<std::uint32_t>(messages.size()));
  smallest = UINT64_MAX;
  for (std::uint32_t rank = 0; rank < messages.size(); ++rank) {
    with_context({.rank = static_cast<int>(rank)}, [&] {
      const ByteView message = messages[rank];
      if (message.size() < kHead ||
          load_le<std::uint64_t>(message, sizeof(std::uint64_t)) > message.size() - kHead)
        throw_error(ErrorCode::kCorrupt,
                    "a rank's layouts for a transfer are cut off: do all ranks run the "
                    "same build?");
      smallest = std::min(smallest, load_le<std::uint64_t>(message, 0));
      const auto held =
          static_cast<std::size_t>(load_le<std::uint64_t>(message, sizeof(std::uint64_t)));
      planner.add_source(rank, decode_plan(message.subspan(kHead, held)));
      planner.add_target(rank, decode_plan(message.subspan(kHead + held)));
    });
  }
  return std::move(planner).finish();
}

void refuse_objects(const End& to) {
  if (!to.object) return;
  throw_error(ErrorCode::kUnsupported, {.key = *to.object},
              "a transfer fills ShardedTensors only; leave ShardedObjects out of the "
              "state dict that is filled");
}

/// Checks the memory of both sides.
void check_memory(const End& from, const End& to) {
  ProblemList problems;
  const auto check = [&](const ShardedTensor& shard, const Tensor& tensor, const char* end,
                         bool is_filled) {
    if (tensor.numel() == 0) return;
    std::string reason = tensor.has_data() ? unreachable(tensor.device()) : "";
    if (!tensor.has_data() && !is_filled) reason = "has no data";
    if (reason.empty() && tensor.has_data() && is_filled) reason = unfit_to_load_into(tensor);
    if (!reason.empty()) problems.add(str_format("{} {} {}", quote(shard.key), end, reason));
  };
  std::vector<Tensor> tensors;
  std::vector<const ShardedTensor*> shards;
  for (const End* const end : {&from, &to}) {
    for (std::size_t i = 0; i < end->shards.size(); ++i) {
      const bool is_filled = end == &to;
      check(end->shards[i], end->tensors[i], is_filled ? "of `to`" : "of `from`", is_filled);
      if (!end->tensors[i].has_data()) continue;
      tensors.push_back(end->tensors[i]);
      shards.push_back(&end->shards[i]);
    }
  }
  const auto of_to = [&](const ShardedTensor* shard) {
    return std::greater_equal()(shard, to.shards.data()) &&
           std::less()(shard, to.shards.data() + to.shards.size());
  };
  for_each_overlap(tensors, [&](std::size_t a, std::size_t b) {
    const ShardedTensor& x = *shards[a];
    const ShardedTensor& y = *shards[b];
    if (!of_to(&x) && !of_to(&y)) return;
    const bool is_same = x.key == y.key && x.global_box() == y.global_box() &&
                         x.flattened_range == y.flattened_range &&
                         tensors[a].data() == tensors[b].data() &&
                         equal(tensors[a].strides(), tensors[b].strides());
    if (!is_same)
      problems.add(str_format("{} {} and {} {} overlap in memory", quote(x.key),
                              of_to(&x) ? "of `to`" : "of `from`", quote(y.key),
                              of_to(&y) ? "of `to`" : "of `from`"));
  });
  problems.raise_if_any(ErrorCode::kInvalidArgument, "tensors that cannot be transferred:");
}

class StateTransfer {
 public:
  StateTransfer(const StateDict& from, StateDict& to, Communicator& comm, TransferCache& cache,
                const TransferOptions& options)
      : from_state_(from), to_state_(to), comm_(comm), cache_(cache), options_(options) {}

  TransferReport run() {
    const Clock::time_point begin = Clock::now();
    Bytes message;
    agree(comm_, "describing the tensors of a transfer", [&] {
      from_.emplace(from_state_);
      to_.emplace(to_state_);
      refuse_objects(*to_);
      check_memory(*from_, *to_);
      if (options_.staging == 0)
        throw_error(ErrorCode::kInvalidArgument, "staging is 0; the default is 64 MiB");
      message = encode_layouts(*from_, *to_, round_budget(options_.staging, comm_.size()));
    });
    const TransferCache::Content& plan = find_plan(std::move(message));
    report_.planning_seconds = seconds_since(begin);
    agree(comm_, "allocating tensors", [&] { allocate(); });
    run_transfer(plan.program, {from_->layout, from_->tensors}, {to_->layout, to_->tensors}, comm_);
    agree(comm_, "merging transferred tensors", [&] { merge_tensors(); });
    count(plan.program);
    report_.seconds = seconds_since(begin);
    return std::move(report_);
  }

 private:
  const TransferCache::Content& find_plan(Bytes message) {
    const TransferCache::Content* const last = cache_.content();
    const bool same = last != nullptr && last->layouts == message;
    const std::int64_t known = same ? last->number : 0;
    const std::array<std::int64_t, 2> bounds{known, -known};
    const std::vector<std::int64_t> least = comm_.all_reduce(bounds, ReduceOp::kMin);
    report_.plan_cached = least[0] != 0 && least[0] == -least[1];
    if (report_.plan_cached) return *last;
    if (!same)
      report_.why_planned = last == nullptr ? "first transfer" : "other tensors or staging";
    return plan(std::move(message));
  }

  const TransferCache::Content& plan(Bytes message) {
    const std::vector<Bytes> messages = comm_.gather(message, 0);
    std::vector<Bytes> programs;
    decide(comm_, [&] {
      std::uint64_t budget = 0;
      const TransferPlan plan = plan_from(messages, budget);
      Fingerprinter hash;
      for (const Bytes& one : messages) {
        hash.update(as_bytes(std::to_string(one.size()) + ':'));
        hash.update(one);
      }
      programs = encode_programs(plan, budget);
      for (Bytes& program : programs) append_le(program, hash.value().low >> 1U | 1U);
    });
    const Bytes mine = comm_.scatter(programs, 0);
    agree(comm_, "reading the plan of a transfer", [&] {
      if (mine.size() < sizeof(std::uint64_t))
        throw_error(ErrorCode::kCorrupt, "the plan of a transfer is cut off");
      const std::size_t end = mine.size() - sizeof(std::uint64_t);
      cache_.remember({std::move(message),
                       static_cast<std::int64_t>(load_le<std::uint64_t>(mine, end)),
                       decode_program(ByteView(mine).first(end), from_->layout, to_->layout,
                                      static_cast<std::uint32_t>(comm_.rank()),
                                      static_cast<std::uint32_t>(comm_.size()))});
    });
    return *cache_.content();
  }

  void allocate() {
    for (std::size_t i = 0; i < to_->tensors.size(); ++i) {
      Tensor& tensor = to_->tensors[i];
      if (!to_->shards[i].data || !tensor.has_data())
        tensor = Tensor::empty(tensor.dtype(), tensor.shape());
    }
  }

  void merge_tensors() {
    if (to_->shards.empty()) return;
    auto tensor = to_->tensors.begin();
    Value filled = map_leaves(std::move(to_->parts.expanded), [&](Value leaf) {
      if (leaf.is(Value::Kind::kShardedTensor)) leaf.mutable_sharded_tensor().data = *tensor++;
      return leaf;
    });
    to_state_ = merge_into_factories(std::move(filled), to_state_);
  }

  void count(const TransferProgram& program) {
    using Kind = TransferProgram::Step::Kind;
    for (const TransferProgram::Step& step : program.steps) {
      (step.kind == Kind::kCopy   ? report_.bytes_copied
       : step.kind == Kind::kSend ? report_.bytes_sent
                                  : report_.bytes_received) += step.bytes;
    }
    report_.rounds = program.schedule.rounds;
  }

  const StateDict& from_state_;
  StateDict& to_state_;
  Communicator& comm_;
  TransferCache& cache_;
  const TransferOptions& options_;
  std::optional<End> from_{};
  std::optional<End> to_{};
  TransferReport report_{};
};

}  // namespace

std::string to_string(const TransferReport& report) {
  return str_format("{:.2f} s (planning {:.2f} s, {}; {}; {} sent, {} received, {} copied)",
                    report.seconds, report.planning_seconds,
                    report.plan_cached           ? "cached"
                    : report.why_planned.empty() ? "not cached: another rank's tensors"
                                                 : "not cached: " + report.why_planned,
                    counted(report.rounds, "round"), human_bytes(report.bytes_sent),
                    human_bytes(report.bytes_received), human_bytes(report.bytes_copied));
}

TransferReport transfer(const StateDict& from, StateDict& to, Communicator& comm,
                        TransferCache& cache, const TransferOptions& options) try {
  const PhaseLabel label("transferring tensors");
  return StateTransfer(from, to, comm, cache, options).run();
} catch (...) {
  throw_checkpoint_error();
}

TransferReport transfer(const StateDict& from, StateDict& to, Communicator& comm,
                        const TransferOptions& options) {
  TransferCache once;
  return transfer(from, to, comm, once, options);
}

TransferLayout transfer_layout(const StateDict& state) try {
  return End(state).layout;
} catch (...) {
  throw_checkpoint_error();
}

TransferPlan plan_transfer(const StateDict& from, const StateDict& to, Communicator& comm) try {
  const PhaseLabel label("planning a transfer");
  Bytes message;
  agree(comm, "describing the tensors of a transfer", [&] {
    const End wanted(to);
    refuse_objects(wanted);
    message = encode_layouts(End(from), wanted, 1);
  });
  const std::vector<Bytes> messages = comm.gather(message, 0);
  TransferPlan plan;
  decide(comm, [&] {
    std::uint64_t budget = 0;
    plan = plan_from(messages, budget);
  });
  return plan;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
