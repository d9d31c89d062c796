#include "mapping/planning/save/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "mapping/planning/save/messages.h"
#include "tests/support/code_of.h"

namespace dckpt::plan_file_test {
namespace {

LocalShard tensor(const std::string& key, Shape global, Box box, bool main_replica = true) {
  return TensorShard{.key = key,
                     .properties = {},
                     .global_shape = std::move(global),
                     .box = std::move(box),
                     .main_replica = main_replica};
}

SavePlanCache::Global decided(const std::vector<std::vector<LocalShard>>& ranks,
                              const GlobalPlanOptions& options = {}) {
  SavePlanCache::Global global{.rules = 32};
  std::vector<SavePlan> plans;
  for (const auto& shards : ranks) {
    plans.push_back(plan_local_save(shards, FlattenedForm::kMegatron));
    global.fingerprints.push_back(fingerprint_of(encode_plan(plans.back())));
  }
  global.plan = plan_global_save(plans, options);
  return global;
}

/// Returns rows of `w` on two ranks, a replica, objects, and a flattened tensor.
SavePlanCache::Global sample() {
  std::vector<std::vector<LocalShard>> ranks(2);
  for (const std::int64_t rank : {0, 1}) {
    auto& shards = ranks[static_cast<std::size_t>(rank)];
    shards.push_back(tensor("replicated", {5}, whole(Shape{5}), rank == 1));
    shards.push_back(tensor("w", {4, 3}, {{2 * rank, 0}, {2, 3}}));
    shards.push_back(ObjectShard{.key = "rng/" + std::to_string(rank), .nbytes = 9});
    LocalShard flat = tensor("flat", {2, 6}, whole(Shape{2, 6}));
    std::get<TensorShard>(flat).fragmentation = Shape{1, 1};
    std::get<TensorShard>(flat).range = TensorShard::Range{6 * rank, 6 * rank + 6};
    shards.push_back(flat);
  }
  return decided(ranks);
}

void expect_same(const SavePlanCache::Global& read, const SavePlanCache::Global& written) {
  EXPECT_EQ(read.rules, written.rules);
  EXPECT_EQ(read.fingerprints, written.fingerprints);
  EXPECT_EQ(read.plan->items, written.plan->items);
  ASSERT_EQ(read.plan->slots.size(), written.plan->slots.size());
  for (std::size_t rank = 0; rank < read.plan->slots.size(); ++rank) {
    for (std::size_t i = 0; i < read.plan->slots[rank].size(); ++i) {
      const GlobalPlan::Slot& a = read.plan->slots[rank][i];
      const GlobalPlan::Slot& b = written.plan->slots[rank][i];
      EXPECT_EQ(std::tie(a.entry, a.chunk, a.is_object), std::tie(b.entry, b.chunk, b.is_object));
    }
  }
  EXPECT_EQ(read.plan->metadata.has_mcore_data, written.plan->metadata.has_mcore_data);
}

TEST(PlanFile, HoldsWhatWasDecided) {
  const SavePlanCache::Global global = sample();
  expect_same(*decode_plan_file(encode_plan_file(global), global.plan->metadata), global);
}

TEST(PlanFile, TakesTheOrderOfPathsFromTheStoredOnes) {
  const SavePlanCache::Global global = sample();
  Metadata stored = global.plan->metadata;
  for (const char* const key : {"w", "rng/1", "not stored", "flat"})
    stored.paths.emplace_back(key, KeyPath{key});
  std::vector<std::string> order;
  const auto read = decode_plan_file(encode_plan_file(global), stored);
  for (const GlobalPlan::Slot& slot : read->plan->path_order)
    order.push_back(slot.is_object ? stored.objects[slot.entry].key
                                   : stored.tensors[slot.entry].key);
  EXPECT_EQ(order, (std::vector<std::string>{"w", "rng/1", "flat"}));
}

TEST(PlanFile, HoldsPiecesAndCopies) {
  const std::int64_t large = static_cast<std::int64_t>(kSplitBytes) / 2;
  const LocalShard shard = tensor("large", {large}, whole(Shape{large}));
  const std::vector<std::vector<LocalShard>> ranks(3, {shard});
  for (const GlobalPlanOptions& options :
       {GlobalPlanOptions{.kind = PlannerKind::kDcp, .split_replicas = true},
        GlobalPlanOptions{.kind = PlannerKind::kHyperParallel, .dedup = Dedup::kOff}}) {
    const SavePlanCache::Global global = decided(ranks, options);
    expect_same(*decode_plan_file(encode_plan_file(global), global.plan->metadata), global);
  }
}

TEST(PlanFile, TakesTwoBytesForAnItem) {
  constexpr std::int64_t kRanks = 64, kKeys = 256;
  std::vector<std::vector<LocalShard>> ranks(kRanks);
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    for (std::int64_t key = 0; key < kKeys; ++key)
      ranks[static_cast<std::size_t>(rank)].push_back(
          tensor("layers." + std::to_string(key), {8 * kRanks, 1024}, {{8 * rank, 0}, {8, 1024}}));
  }
  EXPECT_LE(encode_plan_file(decided(ranks)).size(), 2 * kRanks * kKeys + 32 * (kRanks + 3));
}

TEST(PlanFile, IsRefusedForOtherContents) {
  const SavePlanCache::Global global = sample();
  const Bytes file = encode_plan_file(global);
  const std::vector<std::function<void(Metadata&)>> changes{
      [](Metadata& metadata) { metadata.tensors.pop_back(); },
      [](Metadata& metadata) { metadata.objects.pop_back(); },
      [](Metadata& metadata) { metadata.objects[0].key = "other"; },
      [](Metadata& metadata) { metadata.tensors[0].properties.dtype = DType::kInt32; },
      [](Metadata& metadata) { metadata.tensors[0].properties.requires_grad = true; },
      [](Metadata& metadata) { std::swap(metadata.tensors[0], metadata.tensors[1]); },
      [](Metadata& metadata) { metadata = {}; },
  };
  for (const auto& change : changes) {
    Metadata metadata = global.plan->metadata;
    change(metadata);
    EXPECT_EQ(code_of([&] { decode_plan_file(file, metadata); }), "mismatch");
  }
}

TEST(PlanFile, IsRefusedWhenBytesAreMissingOrOthers) {
  const SavePlanCache::Global global = sample();
  const Bytes file = encode_plan_file(global);
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_EQ(code_of([&] {
                decode_plan_file({file.data(), size}, global.plan->metadata);
              }),
              "corrupt");
  }
  for (std::size_t at = 0; at < file.size(); ++at) {
    Bytes garbled = file;
    garbled[at] ^= std::byte{0x41};
    EXPECT_THROW(decode_plan_file(garbled, global.plan->metadata), CheckpointError) << at;
  }
}

TEST(PlanFile, IsRefusedWhenItsDecisionsDoNotFitTheContents) {
  const SavePlanCache::Global global = sample();
  const auto code_after = [&](const std::function<void(GlobalPlan&)>& change) {
    SavePlanCache::Global changed = global;
    change(*changed.plan);
    return code_of([&] { decode_plan_file(encode_plan_file(changed), global.plan->metadata); });
  };
  EXPECT_EQ(code_after([](GlobalPlan&) {}), "no error");
  EXPECT_EQ(
      code_after([](GlobalPlan& plan) { plan.items[0].pop_back(), plan.slots[0].pop_back(); }),
      "corrupt")
      << "a chunk that nobody writes";
  EXPECT_EQ(code_after([](GlobalPlan& plan) { plan.slots[1].back().chunk = 7; }), "corrupt");
  EXPECT_EQ(
      code_after([](GlobalPlan& plan) { plan.items[0][0].begin = 2, plan.items[0][0].end = 1; }),
      "corrupt");
}

}  // namespace
}  // namespace dckpt::plan_file_test
