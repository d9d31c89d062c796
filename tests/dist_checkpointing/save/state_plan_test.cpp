#include "dist_checkpointing/save/state_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "dist_checkpointing/load/load_async.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "examples/planners/load_planners.h"
#include "tests/dist_checkpointing/planner/save_planners.h"

namespace dckpt::testing::state_plan_test {
namespace {

using ::testing::HasSubstr;

class StatePlans : public Planners {
 protected:
  static void SetUpTestSuite() {
    Planners::SetUpTestSuite();
    example::register_int8();
  }
  static std::vector<StatePlan> plans(const SaveOptions& options) {
    std::vector<StatePlan> all;
    for (int rank = 0; rank < kRanks; ++rank)
      all.emplace_back(state_of(rank), "never/written", options, rank, kRanks);
    return all;
  }
};

TEST_F(StatePlans, AreWhatASaveOfTheSameStatesStores) {
  for (const char* const planner : {"mcore", "int8_weights", "bf16_weights"}) {
    std::vector<StatePlan> planned = plans(with(planner));
    std::vector<SavePlan> items;
    for (const StatePlan& plan : planned) items.push_back(plan.items());
    const GlobalPlan global = planned[0].global_plan(items);
    save_with(planner, with(planner));
    const auto stored = open_checkpoint(checkpoint(planner));
    ASSERT_EQ(global.metadata.tensors.size(), stored->metadata().tensors.size());
    for (std::size_t i = 0; i < global.metadata.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = global.metadata.tensors[i];
      EXPECT_EQ(tensor.key, stored->metadata().tensors[i].key);
      EXPECT_EQ(tensor.properties, stored->metadata().tensors[i].properties);
      EXPECT_EQ(tensor.chunks, stored->metadata().tensors[i].chunks);
    }
    const StateDict loaded = load_plain_tensors(
        checkpoint(planner), Policy::from_text("version: 1\nload: {planner: {kind: stored}}").load);
    for (const WriteItem& item : planned[1].items()) {
      if (item.key != "decoder.w") continue;
      const auto data = planned[1].resolve_data(item);
      EXPECT_TRUE(equal(std::get<Tensor>(data),
                        loaded.at("decoder.w").as_tensor().narrow(0, 4, 4).contiguous()))
          << planner;
    }
  }
}

TEST_F(StatePlans, RefuseItemsOfOthersAndRanksThatDoNotExist) {
  std::vector<StatePlan> planned = plans(with("mcore"));
  EXPECT_THAT(error_of([&] { (void)planned[1].resolve_data(planned[0].items()[0]); }),
              HasSubstr("not of this plan"));
  EXPECT_THAT(error_of([] { StatePlan(state_of(0), "x", {}, 4, 4); }), HasSubstr("no rank 4 of 4"));
}

TEST_F(StatePlans, OfSeveralRanksLoseTheItemsThatOthersWrite) {
  std::vector<SavePlan> items;
  for (const StatePlan& plan :
       plans({.compat = Compat::kDcp, .planner = {.kind = PlannerKind::kDcp}}))
    items.push_back(plan.items());
  const auto writers_of = [](const std::vector<SavePlan>& kept, const std::string& key) {
    std::vector<int> writers;
    for (std::size_t rank = 0; rank < kept.size(); ++rank)
      for (const WriteItem& item : kept[rank])
        if (item.key == key) writers.push_back(static_cast<int>(rank));
    return writers;
  };
  EXPECT_THAT(writers_of(dedup_save_plans(items, true), "decoder.norm"), ::testing::ElementsAre(0));
  EXPECT_THAT(writers_of(dedup_save_plans(items), "decoder.norm"), ::testing::SizeIs(1));
  EXPECT_THAT(writers_of(dedup_save_plans(items), "decoder.w"), ::testing::ElementsAre(0, 1, 2, 3));
}

TEST_F(StatePlans, HaveReadItemsForBoxes) {
  save_with("stored", with("mcore"));
  const auto reader = open_checkpoint(checkpoint("stored"));
  const Metadata& metadata = reader->metadata();
  const auto tensor =
      static_cast<std::uint32_t>(metadata.find_tensor("decoder.w") - metadata.tensors.data());
  const std::vector<Box> boxes{{{3, 0}, {2, 4}}, {{0, 1}, {16, 1}}};
  std::vector<int> items(2);
  for (const ReadItem& item : create_read_items_for_chunk_list(metadata, tensor, boxes))
    ++items.at(item.destination);
  EXPECT_THAT(items, ::testing::ElementsAre(2, 4)) << "rows 3 and 4 are in two chunks";
}

TEST_F(StatePlans, AreLoadedInTheBackgroundByOneCall) {
  save_with("stored", with("mcore"));
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = Value::dict();
    state["w"] =
        ShardedTensor::from_rank_offsets("decoder.w", Tensor::zeros(DType::kFloat32, {8, 4}),
                                         {{.axis = 0, .rank = comm.rank(), .count = 2}});
    PendingLoad pending = load_async(state, checkpoint("stored"), {}, comm);
    pending.wait(state);
    EXPECT_EQ(state.at("w").as_sharded_tensor().data->data<float>()[0],
              static_cast<float>(32 * comm.rank()));
  });
}

}  // namespace
}  // namespace dckpt::testing::state_plan_test
