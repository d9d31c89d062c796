#include "mapping/planning/save/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/planning/save/local_plan.h"
#include "tests/support/code_of.h"

namespace dckpt::replicas_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LocalShard tensor(const std::string& key, Shape global, Box box) {
  return TensorShard{
      .key = key, .properties = {}, .global_shape = std::move(global), .box = std::move(box)};
}

/// Returns the plans of three ranks: `w` in rows, of which ranks 0 and 1 have the same; `norm` on
/// all; an object on ranks 1 and 2; an empty tensor on all.
std::vector<SavePlan> plans() {
  std::vector<SavePlan> plans;
  for (const std::int64_t rank : {0, 1, 2}) {
    std::vector<LocalShard> shards;
    if (rank == 1) shards.push_back(tensor("own", {2}, whole(Shape{2})));
    shards.push_back(tensor("w", {4, 3}, {{rank / 2 * 2, 0}, {2, 3}}));
    shards.push_back(tensor("norm", {5}, whole(Shape{5})));
    shards.push_back(tensor("empty", {0}, whole(Shape{0})));
    if (rank != 0) shards.push_back(ObjectShard{.key = "rng"});
    plans.push_back(plan_local_save(shards, FlattenedForm::kBoxes));
  }
  return plans;
}

Replicas sample() {
  const std::vector<SavePlan> of_ranks = plans();
  return find_replicas(LocalPlans(std::span<const SavePlan>(of_ranks)));
}

TEST(ReplicasOfPlans, AreEqualBoxesAndObjects) {
  const Replicas replicas = sample();
  EXPECT_THAT(replicas.items,
              ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2, 4), ElementsAre(1, 3)));
  std::vector<std::string> keys;
  for (const Replicas::Piece& piece : replicas.pieces) keys.push_back(piece.key);
  EXPECT_THAT(keys, ElementsAre("w", "norm", "rng"));
}

TEST(ReplicasOfPlans, DifferByTheRanksThatHoldEqualCopies) {
  using Hashes = std::vector<std::vector<std::uint64_t>>;
  const auto differing = [](const Hashes& hashes) {
    std::string text;
    for (const DifferingReplicas& each : differing_replicas(sample(), hashes)) {
      for (const std::string& key : each.keys) text += key + " ";
      for (const auto& ranks : each.ranks) {
        text += "|";
        for (const std::size_t rank : ranks) text += std::to_string(rank);
      }
      text += "\n";
    }
    return text;
  };
  EXPECT_EQ(differing({{1, 2}, {1, 2, 3}, {2, 3}}), "");
  EXPECT_EQ(differing({{1, 2}, {1, 9, 3}, {2, 3}}), "norm |02|1\n");
  EXPECT_EQ(differing({{1, 2}, {7, 2, 3}, {2, 4}}), "w |0|1\nrng |1|2\n");
  EXPECT_EQ(differing({{1, 0}, {1, 2, 3}, {2, 3}}), "") << "a copy without data";
  EXPECT_EQ(code_of([&] { differing({{1}, {1, 2, 3}, {2, 3}}); }), "corrupt");
}

TEST(ReplicasOfPlans, NumbersTravelInRuns) {
  const auto bytes_of = [](const std::vector<std::uint32_t>& items) {
    Bytes bytes;
    WireWriter writer(bytes);
    write_items(writer, items);
    WireReader reader(bytes, "items");
    EXPECT_EQ(read_items(reader, 1000), items);
    return bytes.size();
  };
  std::vector<std::uint32_t> all(1000);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_LE(bytes_of(all), 4U);
  EXPECT_EQ(bytes_of({}), 1U);
  bytes_of({0, 2, 3, 999});
}

}  // namespace
}  // namespace dckpt::replicas_test
