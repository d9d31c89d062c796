#include "strategies/views/concatenated_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::concatenated_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;

/// Returns a matrix of 3 × 4 in two pieces, its elements 0 to 11, and a vector.
std::unique_ptr<FakeReader> source() {
  auto reader = std::make_unique<FakeReader>();
  reader
      ->tensor("matrix", DType::kFloat32, {3, 4}, testing::counting<float>(12),
               {{{0, 0}, {3, 3}}, {{0, 3}, {3, 1}}})
      .tensor<float>("vector", DType::kFloat32, {2}, {70, 80})
      .tensor<std::int32_t>("numbers", DType::kInt32, {1}, {5})
      .checksum(true)
      .write();
  return reader;
}

/// Returns two columns of the matrix, from both pieces, two zeros, the vector.
ConcatenatedTensor joined() {
  return {.key = "joined",
          .properties = {.dtype = DType::kFloat32},
          .size = 10,
          .parts = {{0, 0, {{0, 2}, {3, 2}}}, {8, 1, whole(Shape{2})}},
          .chunk = 4,
          .ranks = {0, 1, 0}};
}

std::vector<float> read(const CheckpointReader& reader, std::int64_t begin, std::int64_t count) {
  const Tensor part = read_box(reader, 3, {{begin}, {count}});
  return {part.data<const float>(), part.data<const float>() + count};
}

TEST(ConcatenatedReader, PartsFollowEachOther) {
  const auto reader = concatenated_reader(source(), {joined(), joined()});
  ASSERT_EQ(reader->metadata().tensors.size(), 5);
  EXPECT_THAT(read(*reader, 0, 10), ElementsAre(2, 3, 6, 7, 10, 11, 0, 0, 70, 80));
  for (std::int64_t begin = 0; begin < 10; ++begin)
    EXPECT_EQ(read(*reader, begin, 1), std::vector(1, read(*reader, 0, 10)[begin]));
  const Tensor own = read_box(*reader, 1, whole(Shape{2}));
  EXPECT_EQ(own.data<const float>()[1], 80);
}

TEST(ConcatenatedReader, ChunksBelongToRanksAndHaveTheirPartsChecked) {
  const auto reader = concatenated_reader(source(), {joined()});
  const Metadata& metadata = reader->metadata();
  const TensorStorageMetadata& tensor = metadata.tensors[3];
  ASSERT_EQ(tensor.chunks.size(), 3);
  EXPECT_THAT(metadata.files[tensor.places[1].file], HasSubstr("__1_0.distcp"));
  EXPECT_EQ(tensor.places[2].file, tensor.places[0].file);
  EXPECT_EQ(tensor.places[2].offset, 4 * sizeof(float));
  const auto file = reader->storage().open(metadata.files[tensor.places[2].file]);
  EXPECT_EQ(file->size(), 6 * sizeof(float));
  EXPECT_TRUE(reader->check_chunk(3, 2, *file));
  Bytes odd(3);
  EXPECT_THAT(error_of([&] { file->read(1, odd); }).what(), HasSubstr("divides an element"));
  EXPECT_THAT(error_of([&] { file->read(23, odd); }).what(), HasSubstr("past the end"));
}

TEST(ConcatenatedReader, PartsThatDoNotFitAreRefused) {
  const auto message = [](auto&& bend) {
    ConcatenatedTensor tensor = joined();
    bend(tensor);
    return std::string(error_of([&] { concatenated_reader(source(), {tensor}); }).what());
  };
  EXPECT_THAT(message([](auto& tensor) { tensor.parts[1].begin = 5; }),
              HasSubstr("2 elements at 5 of 10"));
  EXPECT_THAT(message([](auto& tensor) { tensor.size = 9; }), HasSubstr("2 elements at 8 of 9"));
  EXPECT_THAT(message([](auto& tensor) { tensor.parts[1].tensor = 2; }),
              HasSubstr("'numbers' is int32"));
  EXPECT_THAT(message([](auto& tensor) { tensor.ranks.pop_back(); }),
              HasSubstr("chunks of 4 elements for 2 ranks"));
}

}  // namespace
}  // namespace dckpt::concatenated_reader_test
