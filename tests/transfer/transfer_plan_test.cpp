#include "transfer/transfer_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mapping/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_layouts.h"

namespace dckpt::transfer_plan_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Random;
using testing::RandomLayout;
using testing::RandomTensor;

TensorShard shard(std::string key, Shape shape, Box box, bool main = true) {
  return {.key = std::move(key),
          .properties = {},
          .global_shape = std::move(shape),
          .box = std::move(box),
          .main_replica = main};
}

/// Returns the layout of a rank that has these shards.
TransferLayout layout(std::vector<TensorShard> shards) {
  std::vector<LocalShard> local;
  for (TensorShard& one : shards) {
    one.source = static_cast<std::uint32_t>(local.size());
    local.emplace_back(std::move(one));
  }
  return plan_local_save(local, FlattenedForm::kBoxes);
}

std::vector<TransferLayout> layouts(const RandomLayout& ranks) {
  std::vector<TransferLayout> all;
  for (const auto& rank : ranks) {
    std::vector<TensorShard> shards;
    for (const auto& one : rank) shards.push_back(one.spec);
    all.push_back(layout(std::move(shards)));
  }
  return all;
}

/// Returns "rank>rank: box" for every move.
std::vector<std::string> moves_of(const TransferPlan& plan) {
  std::vector<std::string> moves;
  for (const TransferPlan::Part& part : plan.parts) {
    for (const TransferPlan::Move& move : plan.moves_of(part))
      moves.push_back(std::to_string(move.from) + ">" + std::to_string(move.to) + " " +
                      plan.tensors[part.tensor].key + to_string(part.box));
  }
  return moves;
}

TEST(TransferPlan, PartsGoFromEveryHolderToEveryRankThatWantsThem) {
  const std::vector<TransferLayout> from = {layout({shard("w", {4, 6}, {{0, 0}, {2, 6}})}),
                                            layout({shard("w", {4, 6}, {{2, 0}, {2, 6}})}),
                                            {}};
  const std::vector<TransferLayout> to = {
      {},
      layout({shard("w", {4, 6}, {{0, 0}, {4, 3}})}),
      layout({shard("w", {4, 6}, {{0, 3}, {4, 3}})}),
  };
  const TransferPlan plan = make_transfer_plan(from, to);
  EXPECT_THAT(moves_of(plan), ElementsAre("0>1 w[0:2, 0:3]", "1>1 w[2:4, 0:3]", "0>2 w[0:2, 3:6]",
                                          "1>2 w[2:4, 3:6]"));
  EXPECT_THAT(plan.sent_bytes, ElementsAre(48, 24, 0));
  EXPECT_THAT(plan.received_bytes, ElementsAre(0, 24, 48));
}

TEST(TransferPlan, ReplicasShareTheSendingByBytes) {
  // Four ranks hold 12 tensors of four rows each, and one of them holds a large one alone.
  std::vector<TransferLayout> from(12), to(12);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::vector<TensorShard> held;
    for (int i = 0; i < 12; ++i)
      held.push_back(shard("w" + std::to_string(i), {4}, {{0}, {4}}, rank == 0));
    if (rank == 2) held.push_back(shard("large", {24}, {{0}, {24}}));
    from[rank] = layout(held);
    std::vector<TensorShard> wanted = held;
    if (rank != 2) wanted.push_back(shard("large", {24}, {{0}, {24}}));
    to[rank + 8] = layout(wanted);
  }
  const TransferPlan plan = make_transfer_plan(from, to);
  // 48 moves of 16 bytes and 4 of 96: rank 2 sends 384 bytes, the others share 768.
  EXPECT_THAT(plan.sent_bytes, ElementsAre(256, 256, 384, 256, 0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(TransferPlan, ALargeTensorIsSentByAllWhoHoldIt) {
  std::vector<TransferLayout> from, to(5);
  for (int rank = 0; rank < 4; ++rank)
    from.push_back(layout({shard("w", {4096, 1024}, {{0, 0}, {4096, 1024}}, rank == 3)}));
  to[4] = layout({shard("w", {4096, 1024}, {{0, 0}, {4096, 1024}})});
  const TransferPlan plan = make_transfer_plan(from, to);
  EXPECT_THAT(plan.sent_bytes, ElementsAre(4 << 20, 4 << 20, 4 << 20, 4 << 20, 0));
}

TEST(TransferPlan, NothingIsSentThatARankHoldsItself) {
  const TransferLayout whole = layout({shard("w", {4}, {{0}, {4}})});
  const TransferLayout replica = layout({shard("w", {4}, {{0}, {4}}, false)});
  const TransferPlan plan = make_transfer_plan(std::vector<TransferLayout>{whole, replica, replica},
                                               std::vector<TransferLayout>{whole, whole, whole});
  EXPECT_THAT(plan.sent_bytes, Each(0));
  EXPECT_THAT(moves_of(plan), ElementsAre("0>0 w[0:4]", "1>1 w[0:4]", "2>2 w[0:4]"));
}

TEST(TransferPlan, OfNothingIsEmpty) {
  EXPECT_THAT(make_transfer_plan({}, {}).moves, IsEmpty());
  EXPECT_THAT(make_transfer_plan(std::vector<TransferLayout>(3), {}).moves, IsEmpty());
  // Nobody has to hold what has no elements, and holders of nothing are in nobody's way.
  const TransferLayout none = layout({shard("w", {0, 4}, {{0, 0}, {0, 4}})});
  EXPECT_THAT(make_transfer_plan({}, std::vector<TransferLayout>{none}).moves, IsEmpty());
  EXPECT_THAT(
      make_transfer_plan(std::vector<TransferLayout>{none, none}, std::vector<TransferLayout>{none})
          .moves,
      IsEmpty());
}

std::string error_of(const std::vector<TransferLayout>& from,
                     const std::vector<TransferLayout>& to) {
  try {
    (void)make_transfer_plan(from, to);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.what();
  }
  return "";
}

TEST(TransferPlan, LayoutsThatDoNotFitAreErrorsThatNameKeysAndRanks) {
  const TransferLayout half = layout({shard("a.w", {4}, {{0}, {2}})});
  const TransferLayout all = layout({shard("a.w", {4}, {{0}, {4}})});
  EXPECT_THAT(error_of({half}, {{}, all}),
              HasSubstr("'a.w': rank 1 wants [0:4], of which no rank holds 2 elements"));
  EXPECT_THAT(error_of({half}, {layout({shard("a.v", {4}, {{0}, {2}})})}),
              HasSubstr("'a.v': rank 0 wants it, but no rank holds it; did you mean 'a.w'?"));
  EXPECT_THAT(error_of({half, layout({shard("a.w", {4}, {{1}, {3}})})}, {}),
              HasSubstr("'a.w': rank 0 [0:2] and rank 1 [1:4] have elements in common"));
  EXPECT_THAT(error_of({half, {}, half}, {}),
              HasSubstr("'a.w': ranks 0, 2 hold [0:2] as main replica 2 times"));
  EXPECT_THAT(error_of({layout({shard("a.w", {4}, {{0}, {4}}, false)})}, {all}),
              HasSubstr("there are only other replicas"));
  TensorShard other = shard("a.w", {4}, {{0}, {4}});
  other.properties.dtype = DType::kBFloat16;
  EXPECT_THAT(error_of({all}, {{}, {}, layout({other})}),
              HasSubstr("'a.w': rank 2 wants bfloat16 (4,), but rank 0 holds float32 (4,)"));
  EXPECT_THAT(error_of({all}, {layout({shard("a.w", {4, 1}, {{0, 0}, {4, 1}})})}),
              HasSubstr("'a.w': rank 0 wants float32 (4, 1), but rank 0 holds float32 (4,)"));
  EXPECT_THAT(error_of({all}, {layout({shard("a.w", {4}, {{2}, {3}})})}), HasSubstr("outside of"));
}

TEST(TransferPlan, RanksComeOnceInAscendingOrder) {
  const auto code_of_adding = [](std::uint32_t first, std::uint32_t second) {
    TransferPlanner planner(3);
    planner.add_source(first, {});
    planner.add_target(0, {});
    return testing::error_of([&] { planner.add_source(second, {}); }).code();
  };
  EXPECT_EQ(code_of_adding(1, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of_adding(1, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of_adding(1, 3), ErrorCode::kInvalidArgument);
}

/// Counts how often each wanted element of a rank arrives, from where it is held.
void expect_each_once(const TransferPlan& plan, const std::vector<TransferLayout>& from,
                      const std::vector<TransferLayout>& to) {
  const auto inside = [](const Box& box, const Box& part) { return intersect(box, part) == part; };
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::map<std::int64_t, int>> arrived;
  std::vector<std::uint64_t> sent(plan.ranks), received(plan.ranks);
  for (const TransferPlan::Part& part : plan.parts) {
    const TransferPlan::Tensor& tensor = plan.tensors[part.tensor];
    const auto elements = static_cast<std::uint64_t>(numel(part.box.sizes));
    EXPECT_EQ(part.bytes, elements * item_size(tensor.dtype));
    EXPECT_GT(part.bytes, 0U);
    for (const TransferPlan::Move& move : plan.moves_of(part)) {
      const WriteItem& source = from.at(move.from).at(move.from_item);
      const WriteItem& target = to.at(move.to).at(move.to_item);
      EXPECT_TRUE(source.key == tensor.key && inside(source.chunk, part.box));
      EXPECT_TRUE(target.key == tensor.key && inside(target.chunk, part.box));
      for (std::int64_t i = 0; i < numel(part.box.sizes); ++i)
        ++arrived[{move.to, move.to_item}][testing::global_number(tensor.shape, part.box, i)];
      if (move.from == move.to) continue;
      sent[move.from] += part.bytes;
      received[move.to] += part.bytes;
      const bool has_own = std::ranges::any_of(from[move.to], [&](const WriteItem& item) {
        return item.key == source.key && item.chunk == source.chunk;
      });
      EXPECT_FALSE(has_own) << "rank " << move.to << " holds " << to_string(part.box);
    }
  }
  EXPECT_EQ(sent, plan.sent_bytes);
  EXPECT_EQ(received, plan.received_bytes);
  for (std::uint32_t rank = 0; rank < to.size(); ++rank) {
    for (std::uint32_t i = 0; i < to[rank].size(); ++i) {
      const auto& once = arrived[{rank, i}];
      EXPECT_EQ(static_cast<std::int64_t>(once.size()), numel(to[rank][i].chunk.sizes));
      EXPECT_TRUE(std::ranges::all_of(once, [](const auto& entry) { return entry.second == 1; }));
    }
  }
}

TEST(TransferPlan, OfRandomLayoutsMovesEachElementOnce) {
  Random random;
  for (int round = 0; round < testing::random_cases(400) && !HasFailure(); ++round) {
    SCOPED_TRACE(random.trace(round));
    const std::vector<RandomTensor> tensors = testing::random_tensors(random);
    const std::int64_t ranks = random.between(1, 6), split = random.between(1, ranks);
    const auto from = layouts(testing::random_layout(random, tensors, ranks, 0, split, false));
    const auto to = layouts(testing::random_layout(random, tensors, ranks,
                                                   random.chance(50) ? 0 : split - 1, ranks, true));
    const TransferPlan plan = make_transfer_plan(from, to);
    expect_each_once(plan, from, to);
    EXPECT_EQ(moves_of(plan), moves_of(make_transfer_plan(from, to)));
  }
}

}  // namespace
}  // namespace dckpt::transfer_plan_test
