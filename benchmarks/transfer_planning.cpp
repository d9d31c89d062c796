#include "benchmarks/transfer_planning.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "benchmarks/stopwatch.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/messages.h"
#include "transfer/transfer_program.h"

namespace dckpt::bench {
namespace {

/// One rank's place in a layout of a model.
struct Place {
  std::int64_t tp = 1, tp_rank = 0;
  std::int64_t pp = 1, stage = 0;
  std::int64_t ep = 1, ep_rank = 0;
  bool main = true;         ///< among the ranks with the same dense tensors
  bool main_expert = true;  ///< among those with the same experts
};

struct Model {
  std::int64_t layers, hidden, query, key_value, ffn, vocabulary, experts;

  /// Returns the shards of a rank; dense tensors are cut by tensor parallelism, experts are whole.
  std::vector<LocalShard> shards(const Place& at) const {
    std::vector<LocalShard> held;
    const auto add = [&](std::string key, Shape shape, std::optional<std::size_t> axis) {
      Box box = whole(shape);
      if (axis) {
        box.sizes[*axis] /= at.tp;
        box.offsets[*axis] = box.sizes[*axis] * at.tp_rank;
      }
      push(held, std::move(key), std::move(shape), std::move(box),
           at.main && (axis || at.tp_rank == 0));
    };
    if (at.stage == 0) add("model.embed_tokens.weight", {vocabulary, hidden}, 0);
    const std::int64_t per_stage = (layers + at.pp - 1) / at.pp;
    const std::int64_t last = std::min(layers, (at.stage + 1) * per_stage);
    for (std::int64_t layer = at.stage * per_stage; layer < last; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      add(name + "input_layernorm.weight", {hidden}, {});
      add(name + "self_attn.q_proj.weight", {query, hidden}, 0);
      add(name + "self_attn.k_proj.weight", {key_value, hidden}, 0);
      add(name + "self_attn.v_proj.weight", {key_value, hidden}, 0);
      add(name + "self_attn.o_proj.weight", {hidden, query}, 1);
      add(name + "post_attention_layernorm.weight", {hidden}, {});
      if (experts == 0) {
        add(name + "mlp.gate_proj.weight", {ffn, hidden}, 0);
        add(name + "mlp.up_proj.weight", {ffn, hidden}, 0);
        add(name + "mlp.down_proj.weight", {hidden, ffn}, 1);
        continue;
      }
      add(name + "mlp.gate.weight", {experts, hidden}, {});
      for (std::int64_t i = 0; i < experts / at.ep; ++i) {
        const std::string expert =
            name + "mlp.experts." + std::to_string(at.ep_rank * (experts / at.ep) + i) + ".";
        for (const char* const half : {"gate_proj.weight", "up_proj.weight"})
          push(held, expert + half, {ffn, hidden}, whole(Shape{ffn, hidden}), at.main_expert);
        push(held, expert + "down_proj.weight", {hidden, ffn}, whole(Shape{hidden, ffn}),
             at.main_expert);
      }
    }
    if (at.stage == at.pp - 1) {
      add("model.norm.weight", {hidden}, {});
      add("lm_head.weight", {vocabulary, hidden}, 0);
    }
    return held;
  }

 private:
  static void push(std::vector<LocalShard>& held, std::string key, Shape shape, Box box,
                   bool main) {
    TensorShard shard;
    shard.key = std::move(key);
    shard.properties.dtype = DType::kBFloat16;
    shard.global_shape = std::move(shape);
    shard.box = std::move(box);
    shard.main_replica = main;
    shard.source = static_cast<std::uint32_t>(held.size());
    held.emplace_back(std::move(shard));
  }
};

constexpr Model kQwen3{94, 4096, 8192, 512, 1536, 151'936, 128};      // 235 billion parameters
constexpr Model kLlama3{126, 16384, 16384, 1024, 53248, 128'256, 0};  // 405 billion

std::vector<TransferLayout> layouts(
    std::uint32_t before, std::uint32_t ranks, std::uint32_t after,
    const std::function<std::vector<LocalShard>(std::uint32_t)>& of) {
  std::vector<TransferLayout> all(before);
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    all.push_back(plan_local_save(of(rank), FlattenedForm::kBoxes));
  all.resize(std::size_t{before} + ranks + after);
  return all;
}

}  // namespace

std::vector<TransferWorkload> transfer_workloads() {
  const auto trainer = [](std::uint32_t rank) {
    const std::int64_t in_stage = rank % 16;
    return kQwen3.shards({.tp = 4,
                          .tp_rank = in_stage % 4,
                          .pp = 8,
                          .stage = rank / 16,
                          .ep = 8,
                          .ep_rank = in_stage % 8,
                          .main = in_stage < 4,
                          .main_expert = in_stage < 8});
  };
  const auto engine = [](std::int64_t experts) {
    return [experts](std::uint32_t rank) {
      return kQwen3.shards(
          {.tp = 8, .tp_rank = rank % 8, .ep = experts, .ep_rank = rank % experts});
    };
  };
  const auto dense_trainer = [](std::uint32_t rank) {
    return kLlama3.shards(
        {.tp = 8, .tp_rank = rank % 8, .pp = 16, .stage = rank / 64, .main = rank / 8 % 8 == 0});
  };
  const auto dense_engine = [](std::uint32_t rank) {
    return kLlama3.shards({.tp = 16, .tp_rank = rank % 16});
  };
  return {{"transfer-plan-235b", "TP4 x PP8 x DP4, EP8 to 4 engines of TP8 x DP4, EP32", 128, 128,
           trainer, engine(32)},
          {"transfer-plan-235b-ep8", "the same to 16 engines of TP8, EP8", 128, 128, trainer,
           engine(8)},
          {"transfer-plan-405b", "TP8 x PP16 x DP8 to 64 engines of TP16", 1024, 1024,
           dense_trainer, dense_engine}};
}

double measure_transfer_planning(const TransferWorkload& workload, Results& results) {
  const std::vector<TransferLayout> from =
      layouts(0, workload.holders, workload.wanters, workload.held);
  const std::vector<TransferLayout> to =
      layouts(workload.holders, workload.wanters, 0, workload.wanted);
  std::size_t items = 0;
  for (const auto* const side : {&from, &to}) {
    for (const TransferLayout& layout : *side) items += layout.size();
  }
  reset_peak();
  const std::uint64_t before = resident_bytes();
  Stopwatch watch;
  const TransferPlan plan = watch([&] { return make_transfer_plan(from, to); });
  const std::uint64_t peak = peak_resident_bytes() - before;
  const std::uint64_t total =
      std::accumulate(plan.sent_bytes.begin(), plan.sent_bytes.end(), std::uint64_t{0});
  const std::uint64_t most = *std::ranges::max_element(plan.sent_bytes);
  if (total == 0) throw std::runtime_error(workload.name + ": the plan sends nothing");
  const std::string note = grouped(workload.holders) + " + " + grouped(workload.wanters) +
                           " ranks, " + grouped(items) + " items, " + grouped(plan.moves.size()) +
                           " moves of " + human_bytes(total);
  results.add(workload.name, "plan_s", "s", watch.seconds(), note);
  results.add(workload.name, "plan_extra_rss_bytes", "B", static_cast<double>(peak), note);
  results.add(workload.name, "busiest_sender_x", "x",
              static_cast<double>(most) * workload.holders / static_cast<double>(total), note);

  // The other work of rank 0 in a transfer.
  std::vector<Bytes> messages;
  for (const auto* const side : {&from, &to}) {
    for (const TransferLayout& layout : *side) messages.push_back(encode_plan(layout));
  }
  Stopwatch decode, encode;
  std::size_t decoded = 0;
  decode([&] {
    for (const Bytes& message : messages) decoded += decode_plan(message).size();
  });
  if (decoded != items) throw std::runtime_error(workload.name + ": items are lost");
  std::size_t bytes = 0;
  encode([&] {
    for (const Bytes& program : encode_programs(plan, std::uint64_t{32} << 20))
      bytes += program.size();
  });
  results.add(workload.name, "decode_layouts_s", "s", decode.seconds(), note);
  results.add(workload.name, "encode_programs_s", "s", encode.seconds(), note);
  results.add(workload.name, "programs_bytes", "B", static_cast<double>(bytes), note);
  return watch.seconds();
}

}  // namespace dckpt::bench
