// parallel_oracle: prints what ParallelLayout gives a rank, for the comparison with Megatron-Core
// in test_parallel_layouts.py. One case of JSON per line of standard input, one line of answer per
// case: what is asked for, or {"refused": message}.
//
//   {"layout", "groups": [["dense" or "experts", "dp-cp"], …]}     lists of groups of ranks
//   {"layout", "world", "rank"}                                    the rank's positions
//   … "describe": {"kind", "shape", "axis", "rows", "layer", "experts"}   sharded tensors whose
//                                                                  elements are 0, 1, …
//   … "bucket": {"sizes", "param", "end", "experts"}               what the rank owns of parameters
//                                                                  of these sizes

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "mapping/base/error.h"
#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/sharded_tree.h"
#include "tests/interop/json_shape.h"

namespace {

using namespace dckpt;
using Json = nlohmann::json;

ParallelLayout layout_of(const Json& json) {
  return {.tp = json.at("tp"),
          .pp = json.at("pp"),
          .ep = json.at("ep"),
          .dp = json.at("dp"),
          .cp = json.at("cp"),
          .order = json.at("order"),
          .etp = json.at("etp")};
}

Json list(ShapeView numbers) {
  return std::vector<std::int64_t>(numbers.begin(), numbers.end());
}

Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kInt64, shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<std::int64_t>()[i] = i;
  return tensor;
}

Value described(const ParallelRank& rank, const Json& json) {
  const auto kind = json.at("kind").get<std::string>();
  const Tensor tensor = counting(shape_of(json.at("shape")));
  ParallelTensorOptions options;
  if (json.contains("layer")) options.layer = {json["layer"][0], json["layer"][1]};
  if (json.contains("experts")) {
    options.experts = {.count = json["experts"].at("count")};
    if (json["experts"].contains("number")) options.experts->number = json["experts"]["number"];
    options.experts->in_key = json["experts"].value("in_key", false);
  }
  if (kind == "cut") return tensor_parallel(rank, "w", tensor, json.at("axis"), options);
  if (kind == "replicated") return replicated(rank, "w", tensor, options);
  if (kind == "vocabulary") return vocabulary_parallel(rank, "w", tensor, options);
  if (kind == "gated") return gated_column_parallel(rank, "w", tensor, options);
  throw std::invalid_argument(kind);
}

Json shards(const Value& state) {
  Json found = Json::array();
  visit_leaves(apply_factories(state), [&](const Value& leaf) {
    const ShardedTensor& shard = leaf.as_sharded_tensor();
    const Tensor data = shard.data->contiguous();
    const auto* elements = data.data<const std::int64_t>();
    found.push_back({{"offset", list(shard.global_offset)},
                     {"sizes", list(shard.global_box().sizes)},
                     {"global", list(shard.global_shape)},
                     {"replica", list(shard.replica_id.parts())},
                     {"mismatch", shard.allow_shape_mismatch},
                     {"elements", std::vector<std::int64_t>(elements, elements + data.numel())}});
  });
  return found;
}

Json owned(const ParallelRank& rank, const Json& json) {
  const OptimizerBucket bucket{.param_alignment = json.at("param"),
                               .end_alignment = json.at("end"),
                               .experts = json.at("experts")};
  Value params = Value::dict();
  for (const Json& size : json.at("sizes")) {
    params[std::to_string(params.is_none() ? 0 : params.size())] =
        replicated(rank, "w", Tensor::meta(DType::kFloat32, {size.get<std::int64_t>()}));
  }
  const auto [begin, end] = owned_elements(rank, params, bucket);
  const Value state =
      distributed_optimizer_state(rank, params, {{"m", counting({end - begin})}}, bucket);
  Json ranges = Json::object();
  for (const auto& [number, leaf] : state.at("m").as_dict()) {
    const ShardedTensor& shard = leaf.as_sharded_tensor();
    ranges[number.as_str()] = {shard.flattened_range->begin, shard.flattened_range->end,
                               shard.local_data<std::int64_t>()[0]};
  }
  return {{"owned", {begin, end}}, {"ranges", ranges}};
}

Json answer(const Json& job) {
  const ParallelLayout layout = layout_of(job.at("layout"));
  if (job.contains("groups")) {
    Json all = Json::array();
    for (const Json& wanted : job["groups"]) {
      all.push_back(parallel_groups(layout, wanted[1].get<std::string>(),
                                    wanted[0] == "dense" ? RankGrid::kDense : RankGrid::kExperts));
    }
    return all;
  }
  const ParallelRank rank = parallel_rank(layout, job.at("rank"), job.at("world"));
  if (job.contains("describe"))
    return shards(Value::dict({{"w", described(rank, job["describe"])}}));
  if (job.contains("bucket")) return owned(rank, job["bucket"]);
  return {{"tp", rank.tp},       {"cp", rank.cp},   {"dp", rank.dp}, {"pp", rank.pp},
          {"dp_cp", rank.dp_cp}, {"etp", rank.etp}, {"ep", rank.ep}, {"edp", rank.edp}};
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      try {
        std::cout << answer(Json::parse(line)) << '\n';
      } catch (const CheckpointError& error) {
        std::cout << Json{{"refused", error.message()}} << '\n';
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parallel_oracle: %s\n", error.what());
    return 1;
  }
}
