#include "mapping/state/optimizer_slots.h"

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mapping/state/fused_shards.h"
#include "mapping/state/parallel_shards.h"
#include "mapping/state/sharded_tree.h"
#include "tests/support/expect_error.h"

namespace dckpt::optimizer_slots_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

Tensor zeros(Shape shape) {
  return Tensor::zeros(DType::kFloat32, std::move(shape));
}

OptimizerSlot slot(std::string name, StateCut cut, Shape stacked = {}) {
  return {std::move(name), cut, std::move(stacked), zeros};
}

/// Rank 1 of two tensor parallel ranks, on the second data parallel rank.
ParallelRank rank() {
  return parallel_rank({.tp = 2, .dp = 2}, 3, 4);
}

TEST(OptimizerSlots, AreCutLikeTheParameterAlongTheAxesThatTheyHave) {
  const ShardedTensor weight = row_parallel(rank(), "up", zeros({6, 4}));  // columns 4 to 8 of 8
  const ShardedTensor moment = shard_like(weight, "m", StateCut::kParam);
  EXPECT_THAT(moment.global_offset, ElementsAre(0, 4));
  EXPECT_EQ(moment.replica_id, weight.replica_id);

  const ShardedTensor by_row = shard_like(weight, "r", StateCut::kRow);
  EXPECT_THAT(by_row.local_shape, ElementsAre(6));
  EXPECT_THAT(by_row.global_shape, ElementsAre(6));
  EXPECT_FALSE(by_row.replica_id.is_main()) << "rank 0 has the same factors and saves them";
  const ShardedTensor by_column = shard_like(weight, "c", StateCut::kColumn);
  EXPECT_THAT(by_column.global_shape, ElementsAre(8));
  EXPECT_THAT(by_column.global_offset, ElementsAre(4));
  const ShardedTensor number = shard_like(weight, "n", StateCut::kNumber);
  EXPECT_THAT(number.global_shape, ElementsAre());
  EXPECT_FALSE(number.replica_id.is_main());
  const ShardedTensor history = shard_like(weight, "h", StateCut::kParam, {10});
  EXPECT_THAT(history.local_shape, ElementsAre(10, 6, 4));
  EXPECT_THAT(history.global_shape, ElementsAre(10, 6, 8));
  EXPECT_THAT(history.global_offset, ElementsAre(0, 0, 4));
}

TEST(OptimizerSlots, HaveOneMainReplicaPerPiece) {
  const ParallelLayout sizes{.tp = 2, .dp = 2};
  for (const StateCut cut :
       {StateCut::kParam, StateCut::kRow, StateCut::kColumn, StateCut::kNumber}) {
    std::map<std::vector<std::int64_t>, int> mains;  // by offset
    for (int number = 0; number < 4; ++number) {
      const ShardedTensor state =
          shard_like(row_parallel(parallel_rank(sizes, number, 4), "w", zeros({6, 4})), "s", cut);
      const auto& offset = state.global_offset;
      mains[{offset.begin(), offset.end()}] += state.replica_id.is_main() ? 1 : 0;
    }
    for (const auto& [offset, count] : mains) EXPECT_EQ(count, 1) << static_cast<int>(cut);
  }
}

TEST(OptimizerSlots, OfStackedLayersKeepTheAxisOfLayers) {
  const ShardedTensor layer =
      column_parallel(rank(), "layers.w", zeros({4, 6}), {.layer = {{.number = 2, .count = 5}}});
  const ShardedTensor number = shard_like(layer, "n", StateCut::kNumber);
  EXPECT_THAT(number.global_shape, ElementsAre(5));
  EXPECT_THAT(number.global_offset, ElementsAre(2));
  const ShardedTensor by_column = shard_like(layer, "c", StateCut::kColumn, {3});
  EXPECT_THAT(by_column.local_shape, ElementsAre(3, 6));
  EXPECT_THAT(by_column.global_shape, ElementsAre(5, 3, 6));
  EXPECT_THAT(by_column.global_offset, ElementsAre(2, 0, 0));
}

TEST(OptimizerState, IsATreeForEachSlotOfTheParametersThatHaveIt) {
  Value params = Value::dict();
  params["weight"] = column_parallel(rank(), "weight", zeros({4, 6}));
  params["norms"] = Value::list({replicated(rank(), "norm", zeros({6})), 7});
  params["qkv"] = fused_column_parallel(rank(), "qkv", zeros({8, 6}), {4, 2, 2});
  const Value state = optimizer_state(params, [](const std::string& key, const Tensor& param) {
    std::vector<OptimizerSlot> slots = {slot("step", StateCut::kNumber)};
    slots.push_back(slot("exp_avg", StateCut::kParam));
    if (key == "weight") slots.push_back(slot("row", StateCut::kRow));
    if (key == "norm") {
      EXPECT_THAT(param.shape(), ElementsAre(6));
    }
    return slots;
  });
  EXPECT_EQ(state.size(), 3U);
  EXPECT_EQ(state.at("row").size(), 1U);
  EXPECT_EQ(state.at("row").at("weight").as_sharded_tensor().key, "optimizer.state.row.weight");
  EXPECT_EQ(state.at("exp_avg").at("norms").at(0).as_sharded_tensor().key,
            "optimizer.state.exp_avg.norm");
  EXPECT_EQ(state.at("exp_avg").at("qkv").as_factory().key, "optimizer.state.exp_avg.qkv");
  const Value built = apply_factories(state);
  EXPECT_THAT(built.at("exp_avg").at("qkv").at("1").as_sharded_tensor().global_offset,
              ElementsAre(10, 0));
  EXPECT_THAT(built.at("step").at("qkv").as_sharded_tensor().global_shape, ElementsAre());
}

TEST(OptimizerState, OfWhichTheOptimizerHasTensorsSharesThem) {
  std::map<std::string, Tensor> kept;
  const auto hook = [&](const std::string& key, const Tensor&) {
    return std::vector<OptimizerSlot>{{.name = "momentum", .tensor = [&, key](const Shape& shape) {
                                         return kept.try_emplace(key, zeros(shape)).first->second;
                                       }}};
  };
  const Value params = Value::dict({{"w", ShardedTensor::whole("w", zeros({2, 3}))}});
  const Value state = optimizer_state(params, hook);
  EXPECT_EQ(state.at("momentum").at("w").as_tensor().data(), kept.at("w").data());
  EXPECT_EQ(optimizer_state(params, hook).at("momentum").at("w").as_tensor().data(),
            kept.at("w").data());
}

TEST(OptimizerState, ThatDoesNotFitIsRefused) {
  const auto message = [](Value param, std::vector<OptimizerSlot> slots) {
    const Value params = Value::dict({{"p", std::move(param)}});
    const auto error = error_of(
        [&] { optimizer_state(params, [&](const std::string&, const Tensor&) { return slots; }); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return std::string(error.what());
  };
  const ShardedTensor weight = column_parallel(rank(), "w", zeros({4, 6}));
  const OptimizerSlot wrong{
      .name = "m", .cut = StateCut::kRow, .tensor = [](const Shape&) { return zeros({6}); }};
  EXPECT_THAT(message(weight, {wrong}),
              ::testing::AllOf(HasSubstr("the optimizer keeps float32 (6,) for the parameter, but "
                                         "its slot has the shape (4,)"),
                               HasSubstr("optimizer.state.m.w")));
  EXPECT_THAT(message(weight, {{.name = "m"}}), HasSubstr("the slot has no function `tensor`"));
  EXPECT_THAT(message(weight, {slot("m", StateCut::kParam), slot("m", StateCut::kRow)}),
              HasSubstr("two slots with the name 'm'"));
  EXPECT_THAT(message(replicated(rank(), "norm", zeros({6})), {slot("r", StateCut::kRow)}),
              HasSubstr("needs a parameter with at least two axes, but its shape on this rank is "
                        "(6,)"));
  ShardedTensor piece = weight;
  piece.flattened_range = {2, 7};
  piece.data = zeros({5});
  EXPECT_THAT(message(piece, {slot("r", StateCut::kColumn)}), HasSubstr("flattened range"));
  EXPECT_THAT(message(fused_column_parallel(rank(), "qkv", zeros({8, 6}), {4, 2, 2}),
                      {slot("r", StateCut::kRow)}),
              HasSubstr("stored as several tensors (a factory)"));
}

}  // namespace
}  // namespace dckpt::optimizer_slots_test
