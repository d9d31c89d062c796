#include "migration/maps/assignment/relation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dckpt::relation_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Returns the source of each row of the whole tensor, as the name and row of a part: "q3".
std::vector<std::string> rows_of(const Relation& relation) {
  std::vector<std::string> rows(static_cast<std::size_t>(relation.whole.front()));
  for (const RelationPiece& piece : relation.pieces) {
    const Progression to = piece.box.on(0);
    const Progression from = piece.in_tensor.on(0);
    for (std::int64_t i = 0; i < to.count; ++i)
      rows[static_cast<std::size_t>(to.first + i * to.step)] =
          "qkv"[piece.tensor] + std::to_string(from.first + i * from.step);
  }
  return rows;
}

/// The tensor has two groups of three rows: two of the first part and one of the second.
TEST(SplitGroups, PartsHaveTheirRowsOfEveryGroup) {
  const KeyMap map{.numbers = {{.name = "groups"}}};
  const MapNumbers numbers(map, {}, {{"groups", "2"}});
  const std::vector<MapTransform> steps{
      {.step = MapStep::kSplitGroups, .parts = {"groups", "2", "1"}},
      {.step = MapStep::kConcatRows, .parts = {"2", "1"}}};
  const Relation relation = relate(steps, {{6, 5}}, 0, numbers);
  EXPECT_THAT(rows_of(relation), ElementsAre("q0", "q1", "q3", "q4", "q2", "q5"));
  EXPECT_THAT(tensors_of(steps, 1, {6, 5}, numbers), ElementsAre(Shape{6, 5}));
  const auto message = [&](const Shape& shape) {
    return error_of([&] { relate(steps, {shape}, 0, numbers); }).message();
  };
  EXPECT_EQ(message({8, 5}), "8 rows cannot be divided into 3 parts");
  EXPECT_EQ(message({3, 5}), "a part of 1 row cannot be divided into 2 groups");
  const MapNumbers none(map, {}, {{"groups", "0"}});
  EXPECT_EQ(error_of([&] {
              relate(steps, {{6, 5}}, 0, none);
            }).message(),
            "there are from 1 to 65536 groups; groups is 0 (as set)");
}

/// The tensor has two groups of two heads of one row: q0 and its gate q1, q2 and q3, …
TEST(GatedQkvInterleave, AGroupHasItsQueriesThenTheirGates) {
  const KeyMap map{.numbers = {{.name = "num_attention_heads"}, {.name = "num_query_groups"}}};
  const MapNumbers numbers(map, {}, {{"num_attention_heads", "4"}, {"num_query_groups", "2"}});
  const std::vector<MapTransform> steps{{.step = MapStep::kGatedQkvInterleave}};
  const Relation relation = relate(steps, {{8, 5}, {2, 5}, {2, 5}}, 0, numbers);
  EXPECT_THAT(rows_of(relation), ElementsAre("q0", "q2", "q1", "q3", "k0", "v0",  //
                                             "q4", "q6", "q5", "q7", "k1", "v1"));
  EXPECT_THAT(tensors_of(steps, 3, {12, 5}, numbers),
              ElementsAre(Shape{8, 5}, Shape{2, 5}, Shape{2, 5}));
  EXPECT_THAT(error_of([&] {
                relate(steps, {{4, 5}, {2, 5}, {2, 5}}, 0, numbers);
              }).message(),
              HasSubstr("query with gates has 4 rows for 8 heads"));
}

TEST(Squeeze, TakesAwayAFirstAxisOfExtentOne) {
  const KeyMap map;
  const MapNumbers numbers(map, {}, {});
  const std::vector<MapTransform> steps{
      {.step = MapStep::kTranspose}, {.step = MapStep::kSqueeze}, {.step = MapStep::kConcatRows}};
  const Relation relation = relate(steps, {{3, 1}, {3, 1}}, 0, numbers);
  EXPECT_EQ(relation.whole, (Shape{6}));
  ASSERT_THAT(relation.pieces, SizeIs(2));
  EXPECT_THAT(relation.pieces[1].axes, ElementsAre(0));
  const StridedBox place =
      place_in_tensor(relation.pieces[1], StridedBox{Box{.offsets = {4}, .sizes = {2}}});
  EXPECT_EQ(place.offsets, (Shape{1, 0}));
  EXPECT_EQ(place.sizes, (Shape{2, 1}));
  EXPECT_THAT(tensors_of(steps, 2, {6}, numbers), ElementsAre(Shape{3, 1}, Shape{3, 1}));
  EXPECT_EQ(error_of([&] {
              relate(steps, {{3, 2}, {3, 2}}, 0, numbers);
            }).message(),
            "squeeze removes a first axis of extent 1, but the shape is (2, 3)");
}

/// The tensor of a vision tower has two heads of two rows, unlike the language model.
TEST(QkvInterleave, AStepMayHaveHeadsOfItsOwn) {
  const KeyMap map{.numbers = {{.name = "num_attention_heads"}, {.name = "kv_channels"}}};
  const MapNumbers numbers(map, {}, {{"num_attention_heads", "4"}, {"kv_channels", "9"}});
  const std::vector<MapTransform> steps{{.step = MapStep::kQkvInterleave, .parts = {"2", "2"}}};
  const Relation relation = relate(steps, {{4, 5}, {4, 5}, {4, 5}}, 0, numbers);
  EXPECT_THAT(rows_of(relation), ElementsAre("q0", "q1", "k0", "k1", "v0", "v1",  //
                                             "q2", "q3", "k2", "k3", "v2", "v3"));
  EXPECT_THAT(tensors_of(steps, 3, {12, 5}, numbers),
              ElementsAre(Shape{4, 5}, Shape{4, 5}, Shape{4, 5}));
  EXPECT_THAT(error_of([&] {
                relate(steps, {{3, 5}, {3, 5}, {3, 5}}, 0, numbers);
              }).message(),
              HasSubstr("query has 3 rows for 2 heads of query, key and value; 2, 2"));
}

/// Two heads in two groups, of two rows each.
TEST(QkvGrouped, LeavesRowsAndComparesThemWithTheHeads) {
  const KeyMap map{.numbers = {{.name = "num_attention_heads"},
                               {.name = "num_query_groups"},
                               {.name = "kv_channels"}}};
  const MapNumbers numbers(
      map, {}, {{"num_attention_heads", "2"}, {"num_query_groups", "2"}, {"kv_channels", "2"}});
  const std::vector<MapTransform> steps{{.step = MapStep::kQkvGrouped}};
  EXPECT_EQ(relate(steps, {{12, 5}}, 0, numbers).whole, (Shape{12, 5}));
  EXPECT_THAT(tensors_of(steps, 1, {12, 5}, numbers), ElementsAre(Shape{12, 5}));
  EXPECT_THAT(error_of([&] {
                relate(steps, {{18, 5}}, 0, numbers);
              }).message(),
              HasSubstr("linear_qkv has 18 rows for 6 heads of query, key and value"));
  const std::vector<MapTransform> others{{.step = MapStep::kQkvGrouped, .parts = {"2", "1", "3"}}};
  EXPECT_EQ(relate(others, {{9, 5}}, 0, numbers).whole, (Shape{9, 5}));
}

/// Two heads of three rows in two groups; those of the value have one row, as in MiMo V2 Flash.
TEST(QkvInterleave, HeadsOfTheValueMayHaveOtherRows) {
  const KeyMap map{};
  const MapNumbers numbers(map, {}, {});
  const std::vector<MapTransform> steps{
      {.step = MapStep::kQkvInterleave, .parts = {"2", "2", "1"}}};
  const Relation relation = relate(steps, {{6, 5}, {6, 5}, {2, 5}}, 0, numbers);
  EXPECT_THAT(rows_of(relation), ElementsAre("q0", "q1", "q2", "k0", "k1", "k2", "v0",  //
                                             "q3", "q4", "q5", "k3", "k4", "k5", "v1"));
  EXPECT_THAT(tensors_of(steps, 3, {14, 5}, numbers),
              ElementsAre(Shape{6, 5}, Shape{6, 5}, Shape{2, 5}));
  EXPECT_THAT(error_of([&] {
                relate(steps, {{6, 5}, {6, 5}, {6, 5}}, 0, numbers);
              }).message(),
              HasSubstr("query, key and value have the shapes (6, 5), (6, 5) and (6, 5); 2, 2, 1"));
  for (const std::int64_t rows : {1, 2, 15})
    EXPECT_THROW(tensors_of(steps, 3, {rows, 5}, numbers), CheckpointError);
}

class RopeSteps : public ::testing::Test {
 protected:
  Relation relate(MapStep step, std::vector<std::string> heads, std::vector<Shape> tensors) {
    std::vector<MapTransform> steps{{.step = step, .parts = std::move(heads)}};
    if (tensors.size() > 1) steps.push_back({.step = MapStep::kConcatRows});
    return dckpt::relate(steps, std::move(tensors), 0, {map_, {}, given_});
  }

  KeyMap map_{.numbers = {{.name = "rotary_dim"}}};
  std::map<std::string, std::string> given_{};
};

TEST_F(RopeSteps, RowsThatTurnTogetherBecomeNeighborsAndHalvesAgain) {
  EXPECT_THAT(
      rows_of(relate(MapStep::kRopeInterleave, {"2"}, {{12, 5}})),
      ElementsAre("q0", "q3", "q1", "q4", "q2", "q5", "q6", "q9", "q7", "q10", "q8", "q11"));
  EXPECT_THAT(
      rows_of(relate(MapStep::kRopeDeinterleave, {"2"}, {{12}})),
      ElementsAre("q0", "q2", "q4", "q1", "q3", "q5", "q6", "q8", "q10", "q7", "q9", "q11"));
  const std::vector<MapTransform> both{{.step = MapStep::kRopeInterleave, .parts = {"3"}},
                                       {.step = MapStep::kRopeDeinterleave, .parts = {"3"}}};
  EXPECT_THAT(
      rows_of(dckpt::relate(both, {{12, 1}}, 0, {map_, {}, {}})),
      ElementsAre("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9", "q10", "q11"));
}

TEST_F(RopeSteps, EverySecondRowOfAHeadIsOnePiece) {
  for (const MapStep step : {MapStep::kRopeInterleave, MapStep::kRopeDeinterleave})
    EXPECT_THAT(relate(step, {"3"}, {{3'000'000, 5}}).pieces, SizeIs(6));
}

TEST_F(RopeSteps, TensorsHaveTheirOwnHeadsOrNone) {
  const Relation relation =
      relate(MapStep::kRopeInterleave, {"2", "1", "0"}, {{4, 2}, {4, 2}, {4, 2}});
  EXPECT_THAT(rows_of(relation),
              ElementsAre("q0", "q1", "q2", "q3", "k0", "k2", "k1", "k3", "v0", "v1", "v2", "v3"));
}

TEST_F(RopeSteps, RowsBehindThoseThatTurnStayWhereTheyAre) {
  given_ = {{"rotary_dim", "4"}};
  EXPECT_THAT(rows_of(relate(MapStep::kRopeInterleave, {"1"}, {{6, 2}})),
              ElementsAre("q0", "q2", "q1", "q3", "q4", "q5"));
}

TEST_F(RopeSteps, HeadsThatDoNotFitAreRefused) {
  const auto message = [&](const std::string& heads, const Shape& shape) {
    return error_of([&] { relate(MapStep::kRopeInterleave, {heads}, {shape}); }).message();
  };
  EXPECT_EQ(message("5", {12, 2}), "12 rows cannot be divided into 5 heads");
  EXPECT_THAT(message("4", {12, 2}),
              HasSubstr("rotary embedding covers 3 of the 3 rows of a head"));
  EXPECT_THAT(message("2097152", {std::int64_t{1} << 40, 2}),
              HasSubstr("the rows of more than 1,048,576 heads"));
  given_ = {{"rotary_dim", "8"}};
  EXPECT_EQ(message("2", {12, 2}),
            "rotary embedding covers 8 of the 6 rows of a head; rotary_dim is 8 (as set)");
}

}  // namespace
}  // namespace dckpt::relation_test
