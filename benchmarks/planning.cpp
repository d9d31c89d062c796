#include "benchmarks/planning.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>

#include "benchmarks/planners.h"
#include "benchmarks/process_stats.h"
#include "benchmarks/stopwatch.h"
#include "mapping/base/text.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/messages.h"
#include "mapping/planning/save/plan_agreement.h"
#include "mapping/planning/validate.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"

namespace dckpt::bench {
namespace {

constexpr std::uint64_t kPayload = 20480;  // bytes of a stored chunk

TensorShard tensor_shard(std::string key, Shape global_shape, Box box,
                         DType dtype = DType::kBFloat16) {
  TensorShard shard;
  shard.key = std::move(key);
  shard.properties.dtype = dtype;
  shard.global_shape = std::move(global_shape);
  shard.box = std::move(box);
  return shard;
}

/// Returns tensors cut on axis 0 into one chunk of (8, 1024) per shard; `replicas` ranks hold the
/// same.
PlanWorkload rows(std::string name, std::uint32_t ranks, std::uint32_t replicas) {
  PlanWorkload workload{std::move(name),
                        grouped(ranks) + " ranks x 256 tensors",
                        ranks,
                        replicas == 1 ? PlannerKind::kMegatron : PlannerKind::kDcp,
                        {}};
  workload.shards = [ranks, replicas](std::uint32_t rank) {
    constexpr std::int64_t kRows = 8, kColumns = 1024;
    const std::int64_t shards = ranks / replicas;
    std::vector<LocalShard> held;
    for (int t = 0; t < 256; ++t) {
      held.push_back(tensor_shard("decoder.layers." + std::to_string(t / 8) + ".mlp.linear_fc" +
                                      std::to_string(t % 8) + ".weight",
                                  {shards * kRows, kColumns},
                                  {{rank % shards * kRows, 0}, {kRows, kColumns}}));
    }
    return held;
  };
  return workload;
}

/// A dense model on TP8 x PP16 x DP: bfloat16 weights, replicated over DP, and a distributed
/// optimizer whose three float32 states are flat ranges. The first and the last stage have a layer
/// less than the others.
class LargeModel {
 public:
  LargeModel(std::int64_t layers_per_stage, std::int64_t data_parallel, bool stacked)
      : per_stage_(layers_per_stage),
        layers_(layers_per_stage * kPipeline - 2),
        data_parallel_(data_parallel),
        stacked_(stacked) {}

  std::uint32_t ranks() const {
    return static_cast<std::uint32_t>(kTensorParallel * kPipeline * data_parallel_);
  }

  std::vector<LocalShard> shards(std::uint32_t rank) const {
    const std::int64_t tensor_rank = rank % kTensorParallel;
    const std::int64_t data_rank = rank / kTensorParallel % data_parallel_;
    const std::int64_t stage = rank / (kTensorParallel * data_parallel_);
    const std::vector<Parameter> parameters = stage_parameters(stage, tensor_rank);
    std::vector<LocalShard> held;
    std::int64_t total = 0;
    for (const Parameter& parameter : parameters) {
      TensorShard shard =
          tensor_shard("model." + parameter.name, parameter.global_shape, parameter.box);
      shard.main_replica = data_rank == 0 && (!parameter.replicated || tensor_rank == 0);
      held.push_back(std::move(shard));
      total += numel(parameter.box.sizes);
    }
    const std::int64_t share = (total / data_parallel_ + 127) / 128 * 128;
    std::int64_t begin = 0;
    for (const Parameter& parameter : parameters) {
      const std::int64_t size = numel(parameter.box.sizes);
      const std::int64_t first = std::clamp<std::int64_t>(share * data_rank - begin, 0, size);
      const std::int64_t last = std::clamp<std::int64_t>(share * (data_rank + 1) - begin, 0, size);
      begin += size;
      if (first == last || (parameter.replicated && tensor_rank != 0)) continue;
      for (const char* const state : {"fp32_param.", "exp_avg.", "exp_avg_sq."}) {
        TensorShard shard = tensor_shard(std::string("optimizer.state.") + state + parameter.name,
                                         parameter.global_shape, parameter.box, DType::kFloat32);
        shard.range = TensorShard::Range{first, last};
        held.push_back(std::move(shard));
      }
    }
    return held;
  }

 private:
  static constexpr std::int64_t kTensorParallel = 8, kPipeline = 16;
  static constexpr std::int64_t kHidden = 16384, kVocabulary = 128256;

  struct Parameter {
    std::string name;
    Shape global_shape;
    Box box;
    bool replicated = false;  ///< over the tensor parallel ranks
  };

  static Parameter cut(std::string name, Shape shape, std::optional<std::size_t> axis,
                       std::int64_t tensor_rank) {
    Parameter parameter{std::move(name), shape, whole(shape), !axis};
    if (axis) {
      parameter.box.sizes[*axis] /= kTensorParallel;
      parameter.box.offsets[*axis] = parameter.box.sizes[*axis] * tensor_rank;
    }
    return parameter;
  }

  std::vector<Parameter> stage_parameters(std::int64_t stage, std::int64_t tensor_rank) const {
    std::vector<Parameter> parameters;
    if (stage == 0)
      parameters.push_back(
          cut("embedding.word_embeddings.weight", {kVocabulary, kHidden}, 0, tensor_rank));
    const std::int64_t first = std::max<std::int64_t>(0, stage * per_stage_ - 1);
    const std::int64_t last = std::min(layers_, (stage + 1) * per_stage_ - 1);
    for (std::int64_t layer = first; layer < last; ++layer) {
      const auto add = [&](const char* name, Shape shape, std::optional<std::size_t> axis) {
        const std::string of_one = stacked_ ? "" : std::to_string(layer) + ".";
        Parameter parameter =
            cut("decoder.layers." + of_one + name, std::move(shape), axis, tensor_rank);
        if (stacked_) {
          parameter.global_shape.insert(parameter.global_shape.begin(), layers_);
          parameter.box.offsets.insert(parameter.box.offsets.begin(), layer);
          parameter.box.sizes.insert(parameter.box.sizes.begin(), 1);
        }
        parameters.push_back(std::move(parameter));
      };
      add("self_attention.linear_qkv.weight", {18432, kHidden}, 0);
      add("self_attention.linear_proj.weight", {kHidden, kHidden}, 1);
      add("self_attention.linear_qkv.layer_norm_weight", {kHidden}, std::nullopt);
      add("mlp.linear_fc1.weight", {2, 53248, kHidden}, 1);
      add("mlp.linear_fc2.weight", {kHidden, 53248}, 1);
      add("mlp.linear_fc1.layer_norm_weight", {kHidden}, std::nullopt);
    }
    if (stage == kPipeline - 1) {
      parameters.push_back(
          cut("decoder.final_layernorm.weight", {kHidden}, std::nullopt, tensor_rank));
      parameters.push_back(cut("output_layer.weight", {kVocabulary, kHidden}, 0, tensor_rank));
    }
    return parameters;
  }

  std::int64_t per_stage_;
  std::int64_t layers_;
  std::int64_t data_parallel_;
  bool stacked_;  ///< layers have common keys, and an axis of their own
};

PlanWorkload workload_of(std::string name, std::string about, const LargeModel& model) {
  return {std::move(name), std::move(about), model.ranks(), PlannerKind::kMegatron,
          [model](std::uint32_t rank) { return model.shards(rank); }};
}

SavePlan local_plan(const std::vector<LocalShard>& shards) {
  return plan_local_save(shards, FlattenedForm::kBoxes);
}

/// Places the items as a writer of one file per rank would.
Metadata place(GlobalPlan plan) {
  std::vector<std::vector<StorageInfo>> places(plan.items.size());
  std::vector<std::vector<std::string>> files(plan.items.size());
  for (std::size_t rank = 0; rank < plan.items.size(); ++rank) {
    files[rank].push_back("__" + std::to_string(rank) + "_0.distcp");
    for (std::size_t i = 0; i < plan.items[rank].size(); ++i)
      places[rank].push_back({0, i * kPayload, kPayload});
  }
  return written_metadata(std::move(plan), places, files);
}

/// Returns the wanted shards of one of `ranks` loading ranks: its part of every tensor, cut along
/// the first axis that is long enough.
std::vector<WantedShard> wanted_part(const Metadata& metadata, std::int64_t ranks) {
  std::vector<WantedShard> wanted;
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    WantedShard shard{i, i, whole(metadata.tensors[i].global_shape())};
    for (std::size_t axis = 0; axis < shard.box.dims(); ++axis) {
      if (shard.box.sizes[axis] < ranks) continue;
      shard.box.sizes[axis] /= ranks;
      shard.box.offsets[axis] = shard.box.sizes[axis];
      break;
    }
    wanted.push_back(std::move(shard));
  }
  return wanted;
}

}  // namespace

std::vector<PlanWorkload> plan_workloads() {
  return {rows("plan-262k", 1024, 1), rows("plan-262k-dp8", 1024, 8), rows("plan-1m", 4096, 1),
          rows("plan-4m", 16384, 1),
          workload_of("plan-405b", "TP8 x PP16 x DP70, distributed optimizer",
                      LargeModel(8, 70, true))};
}

PlanWorkload ten_terabytes() {
  return workload_of("10t", "TP8 x PP16 x DP8, distributed optimizer", LargeModel(14, 8, false));
}

double measure_planning(const PlanWorkload& workload, Results& results) {
  std::uint64_t items = 0, plan_bytes = 0;
  Stopwatch describe, gather, global, first, dump;
  const std::uint64_t before = resident_bytes();
  reset_peak();

  // Ranks are planned one after the other, so the resident memory is what a coordinator needs, not
  // that of a thousand ranks in one process.
  std::vector<Bytes> encoded(workload.ranks);
  for (std::uint32_t rank = 0; rank < workload.ranks; ++rank) {
    const std::vector<LocalShard> shards = workload.shards(rank);
    first([&] { describe([&] { encoded[rank] = encode_plan(local_plan(shards)); }); });
    encoded[rank].shrink_to_fit();
    plan_bytes += encoded[rank].size();
  }
  GlobalPlan plan;
  first([&] {
    GlobalPlanner planner({.kind = workload.kind});
    for (const Bytes& bytes : encoded) {
      const SavePlan local = gather([&] { return decode_plan(bytes); });
      items += local.size();
      global([&] { planner.add(local); });
    }
    global([&] { plan = std::move(planner).finish(); });
  });
  if (items < 1'000'000) measure_planners(workload, encoded, results);
  encoded = {};
  Metadata written = place(std::move(plan));
  const Bytes metadata = first([&] { return dump([&] { return write_dcp_metadata(written); }); });
  const std::uint64_t peak = peak_resident_bytes() - before;

  std::size_t chunks = 0;
  for (const TensorStorageMetadata& tensor : written.tensors) chunks += tensor.chunks.size();
  const std::string note = grouped(workload.ranks) + " ranks, " + grouped(items) + " items, " +
                           grouped(chunks) + " chunks";
  const auto add = [&](const char* metric, double value, const char* unit = "s") {
    results.add(workload.name, metric, unit, value, note);
  };
  add("plan_local_s", describe.seconds() / workload.ranks);
  add("plan_gather_s", gather.seconds());
  add("plan_global_s", global.seconds());
  add("metadata_dump_s", dump.seconds());
  add("plan_total_s", first.seconds());
  add("plan_bytes", static_cast<double>(plan_bytes), "B");
  add("metadata_bytes", static_cast<double>(metadata.size()), "B");
  add("plan_extra_rss_bytes", static_cast<double>(peak), "B");

  Stopwatch validate;
  validate([&] {
    for (const TensorStorageMetadata& tensor : written.tensors) {
      if (!validate_coverage(tensor).empty())
        throw std::runtime_error(workload.name + ": the plan does not cover " + tensor.key);
    }
  });
  add("validate_s", validate.seconds());
  written = {};

  reset_peak();
  const std::uint64_t before_load = resident_bytes();
  Stopwatch load;
  const Metadata back = load([&] { return read_dcp_metadata(metadata); });
  add("metadata_load_s", load.seconds());
  add("metadata_load_extra_rss_bytes", static_cast<double>(peak_resident_bytes() - before_load),
      "B");

  for (const auto& [metric, ranks] :
       {std::pair{"load_plan_s", 96}, std::pair{"load_plan_quarter_s", 4}}) {
    const std::vector<WantedShard> wanted = wanted_part(back, ranks);
    Stopwatch load_plan;
    const std::size_t reads = load_plan([&] { return plan_reads(back, wanted).size(); });
    if (reads < back.tensors.size())
      throw std::runtime_error(workload.name + ": a load plan reads too few chunks");
    add(metric, load_plan.seconds());
  }

  // One rank is planned repeatedly, with a coordinator that knows all ranks; the plans of several
  // ranks stand for all.
  constexpr std::uint32_t kSample = 64;
  SavePlanCache cache;
  const std::vector<LocalShard> shards = workload.shards(workload.ranks / 2);
  const auto save = [&] {
    PlanAgreement rank(cache, {.kind = workload.kind, .validate = false});
    LocalPlan local = rank.create_local_plan(local_plan(shards));
    DecidedPlan decision = rank.create_global_plan({&local.proposal, 1});
    cache.commit(rank.to_remember(
        rank.finish_plan(std::move(local), decision.answers.front()).local, decision.global));
    return decision.cache_hit;
  };
  save();
  Stopwatch hit;
  bool always = true;
  hit([&] {
    for (std::uint32_t i = 0; i < kSample; ++i) always = save() && always;
  });
  if (!always) throw std::runtime_error(workload.name + ": the plan cache missed");
  add("plan_hit_s", hit.seconds() / kSample);
  return first.seconds();
}

double measure_overlap_check(Results& results) {
  struct Case {
    const char* name;
    std::int64_t rows, columns, height, width;
  };
  static constexpr std::array<Case, 15> kCases{{
      {"16k-square", 128, 128, 64, 64},
      {"16k-fine0-long0", 1024, 16, 64, 64},
      {"16k-fine1-long1", 16, 1024, 64, 64},
      {"16k-fine1-long0", 16, 1024, 8192, 4},
      {"16k-fine0-long1", 1024, 16, 4, 8192},
      {"65k-square", 256, 256, 64, 64},
      {"65k-fine0-long0", 4096, 16, 64, 64},
      {"65k-fine1-long1", 16, 4096, 64, 64},
      {"65k-fine1-long0", 16, 4096, 8192, 4},
      {"65k-fine0-long1", 4096, 16, 4, 8192},
      {"262k-square", 512, 512, 64, 64},
      {"262k-fine0-long0", 16384, 16, 64, 64},
      {"262k-fine1-long1", 16, 16384, 64, 64},
      {"262k-fine1-long0", 16, 16384, 8192, 4},
      {"262k-fine0-long1", 16384, 16, 4, 8192},
  }};
  double total = 0;
  for (const Case& grid : kCases) {
    TensorStorageMetadata tensor{"w",
                                 {.dtype = DType::kBFloat16},
                                 {grid.rows * grid.height, grid.columns * grid.width},
                                 BoxList(2),
                                 {}};
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.columns; ++j)
        tensor.chunks.push_back(Box{{i * grid.height, j * grid.width}, {grid.height, grid.width}});
    }
    Stopwatch watch;
    const bool sound = watch([&] { return validate_coverage(tensor).empty(); });
    if (!sound) throw std::runtime_error(std::string(grid.name) + ": a false error");
    results.add(std::string(kOverlapCheck) + ":" + grid.name, "validate_s", "s", watch.seconds());
    total += watch.seconds();
  }
  return total;
}

}  // namespace dckpt::bench
