#include "strategies/views/rearranged_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::rearranged_reader_test {
namespace {

using testing::counting;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using enum TensorPart::Elements;

/// Returns a checkpoint of one tensor "w", 0, 1, 2, …, cut into boxes, seen as `made`.
std::unique_ptr<CheckpointReader> seen(Shape shape, std::vector<Box> boxes, RearrangedTensor made) {
  auto source = std::make_unique<FakeReader>();
  source->tensor("w", DType::kInt32, shape, counting<std::int32_t>(numel(shape)), std::move(boxes));
  source->write();
  made.properties.dtype = DType::kInt32;
  return rearranged_reader(std::move(source), {.tensors = {std::move(made)}});
}

std::vector<std::int32_t> read(const CheckpointReader& reader, std::optional<Box> box = {}) {
  const TensorStorageMetadata& tensor = reader.metadata().tensors.front();
  const Tensor values = read_box(reader, 0, box.value_or(whole(tensor.size)));
  const auto* const data = reinterpret_cast<const std::int32_t*>(values.data());
  return {data, data + numel(values.shape())};
}

TensorPart part(Box target, Box source, std::vector<std::int32_t> axes = {}) {
  return {kByAxis, std::move(target), 0, std::move(source), std::move(axes)};
}

const std::vector<Box> kTwoColumns = {{{0, 0}, {4, 2}}, {{0, 2}, {4, 1}}};

TEST(RearrangedReader, AKeyOfAnotherNameLiesInTheSameChunks) {
  const auto reader = seen({4, 3}, kTwoColumns,
                           {"renamed", {}, {4, 3}, {part(whole(Shape{4, 3}), whole(Shape{4, 3}))}});
  EXPECT_EQ(reader->metadata().tensors.front().key, "renamed");
  EXPECT_EQ(reader->metadata().tensors.front().chunks.size(), 2);
  EXPECT_EQ(read(*reader), counting<std::int32_t>(12));
  EXPECT_THAT(read(*reader, Box{{1, 1}, {2, 2}}), ElementsAre(4, 5, 7, 8));
}

TEST(RearrangedReader, ATransposedTensorIsReadByStrides) {
  const auto reader =
      seen({4, 3}, kTwoColumns,
           {"t", {}, {3, 4}, {part(whole(Shape{3, 4}), whole(Shape{4, 3}), {1, 0})}});
  EXPECT_THAT(read(*reader), ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11));
  EXPECT_THAT(read(*reader, Box{{1, 2}, {2, 2}}), ElementsAre(7, 10, 8, 11));
}

TEST(RearrangedReader, RowsCanChangePlacesAndGetAnAxis) {
  // Rows 2 and 3 come first, as layer 0, then rows 0 and 1 as layer 1.
  const auto reader = seen({4, 3}, kTwoColumns,
                           {"stacked",
                            {},
                            {2, 2, 3},
                            {part({{0, 0, 0}, {1, 2, 3}}, {{2, 0}, {2, 3}}, {kNoAxis, 0, 1}),
                             part({{1, 0, 0}, {1, 2, 3}}, {{0, 0}, {2, 3}}, {kNoAxis, 0, 1})}});
  EXPECT_THAT(read(*reader), ElementsAre(6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5));
}

TEST(RearrangedReader, AnAxisOfOneLayerCanGo) {
  const auto reader =
      seen({2, 2, 2}, {},
           {"layer1", {}, {2, 2}, {part({{0, 0}, {2, 2}}, {{1, 0, 0}, {1, 2, 2}}, {1, 2})}});
  EXPECT_THAT(read(*reader), ElementsAre(4, 5, 6, 7));
}

TEST(RearrangedReader, ElementsCanBeTakenInOrderWhateverTheShapes) {
  // Elements 5 to 10 of a flat buffer that is stored in two pieces, as rows of three and back.
  const auto rows = seen({12}, {{{0}, {7}}, {{7}, {5}}},
                         {"rows", {}, {2, 3}, {{kInOrder, whole(Shape{2, 3}), 0, {{5}, {6}}}}});
  EXPECT_THAT(read(*rows), ElementsAre(5, 6, 7, 8, 9, 10));
  const auto flat = seen({4, 3}, kTwoColumns,
                         {"flat", {}, {12}, {{kInOrder, whole(Shape{12}), 0, whole(Shape{4, 3})}}});
  EXPECT_EQ(read(*flat), counting<std::int32_t>(12));
}

/// Returns every second entry of the target's first axis, from the first or the second one on.
TensorPart every_second(std::int64_t first, Box source) {
  TensorPart result = part({{first, 0}, source.sizes}, source);
  result.target_steps = {2, 1};
  return result;
}

TEST(RearrangedReader, RowsThatTakeTurnsAreOneChunk) {
  const auto reader =
      seen({4, 3}, kTwoColumns,
           {"turns",
            {},
            {4, 3},
            {every_second(0, {{0, 0}, {2, 3}}), every_second(1, {{2, 0}, {2, 3}})}});
  EXPECT_EQ(reader->metadata().tensors.front().chunks.size(), 1);
  const std::vector<std::int32_t> all{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11};
  EXPECT_EQ(read(*reader), all);
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t column = 0; column < 3; ++column)
      EXPECT_THAT(read(*reader, Box{{row, column}, {1, 1}}), ElementsAre(all[row * 3 + column]));
  }
}

TEST(RearrangedReader, EverySecondRowOfTheSourceIsOnePart) {
  TensorPart even = part({{0, 0}, {2, 3}}, {{0, 0}, {2, 3}});
  TensorPart odd = part({{2, 0}, {2, 3}}, {{1, 0}, {2, 3}});
  even.source_steps = odd.source_steps = {2, 1};
  const auto reader = seen({4, 3}, kTwoColumns, {"halves", {}, {4, 3}, {even, odd}});
  EXPECT_THAT(read(*reader), ElementsAre(0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11));
}

TEST(RearrangedReader, RowsThatTakeTurnsWithoutCoveringTheirBoxAreRefused) {
  const std::string message =
      error_of([&] {
        seen({4, 3}, {},
             {"made",
              {},
              {4, 3},
              {every_second(0, {{0, 0}, {2, 3}}), every_second(0, {{2, 0}, {2, 3}})}});
      }).message();
  EXPECT_THAT(message, HasSubstr("do not cover it exactly"));
}

TEST(RearrangedReader, PaddingIsZeroWhateverItsSize) {
  const std::int64_t columns = 30'000;  // a row is larger than the file of zeros
  const auto reader = seen(
      {1, columns}, {},
      {"padded",
       {},
       {3, columns},
       {part({{0, 0}, {1, columns}}, whole(Shape{1, columns})), {kZeros, {{1, 0}, {2, columns}}}}});
  std::vector<std::int32_t> expected = counting<std::int32_t>(static_cast<std::size_t>(columns));
  expected.resize(static_cast<std::size_t>(3 * columns));
  EXPECT_EQ(read(*reader), expected);
}

TEST(RearrangedReader, TensorsWithoutElementsStay) {
  const auto reader = seen({4, 3}, {}, {"none", {}, {0, 3}, {}});
  EXPECT_EQ(reader->metadata().tensors.front().chunks.size(), 1);
  EXPECT_TRUE(read(*reader).empty());
}

TEST(RearrangedReader, PartsThatDoNotFitAreRefused) {
  const auto message = [](std::vector<TensorPart> parts) {
    const CheckpointError error = error_of([&] {
      seen({4, 3}, {}, {"made", {}, {4, 3}, std::move(parts)});
    });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_EQ(error.context().key, "made");
    return std::string(error.what());
  };
  EXPECT_THAT(message({part({{0, 0}, {2, 3}}, {{0, 0}, {2, 3}})}), HasSubstr("no chunk"));
  EXPECT_THAT(message({part(whole(Shape{4, 3}), {{1, 0}, {4, 3}})}),
              HasSubstr("its shape is (4, 3)"));
  EXPECT_THAT(message({part(whole(Shape{4, 3}), {{0, 0}, {3, 3}})}), HasSubstr("is to become"));
  EXPECT_THAT(message({part(whole(Shape{4, 3}), whole(Shape{4, 3}), {0, 0})}),
              HasSubstr("is to become"));
  EXPECT_THAT(message({part({{1, 0}, {4, 3}}, whole(Shape{4, 3}))}), HasSubstr("lies outside"));
}

TEST(RearrangedReader, ObjectsAndCommonStateCanBeMade) {
  auto source = std::make_unique<FakeReader>();
  source->object("rng/shard_0_1", Value("kept")).common(Value::dict({{"iteration", 7}})).write();
  const auto reader = rearranged_reader(std::move(source),
                                        {.tensors = {},
                                         .objects = {{.key = "moved/shard_0_1", .position = 0},
                                                     {.key = "made/shard_0_1", .value = Value()}},
                                         .common = Value::dict({{"iteration", 0}})});
  EXPECT_EQ(reader->object(0), Value("kept"));
  EXPECT_TRUE(reader->object(1).is_none());
  EXPECT_EQ(reader->common_state(), Value::dict({{"iteration", 0}}));
}

}  // namespace
}  // namespace dckpt::rearranged_reader_test
