#include "strategies/views/overlaid_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"

namespace dckpt::overlaid_reader_test {
namespace {

using ::testing::ElementsAre;
using testing::FakeReader;

std::vector<float> read(const CheckpointReader& reader, std::size_t tensor) {
  const Tensor part = read_box(reader, tensor, whole(reader.metadata().tensors[tensor].size));
  return {part.data<const float>(), part.data<const float>() + part.numel()};
}

TEST(OverlaidReader, TensorsOfTheOtherTakeThePlaceOfOnesOrFollowThem) {
  auto source = std::make_unique<FakeReader>();
  source->tensor<float>("a", DType::kFloat32, {2}, {1, 2})
      .tensor<float>("b", DType::kFloat32, {2}, {3, 4})
      .object("o", 5)
      .write();
  auto other = std::make_shared<FakeReader>();
  other->checksum(false)
      .tensor<float>("wrapped.c", DType::kFloat32, {1}, {6})
      .tensor<float>("wrapped.a", DType::kFloat32, {3}, {7, 8, 9})
      .write();
  const auto reader = overlaid_reader(std::move(source), other, {{"a", 1}, {"c", 0}});
  const Metadata& metadata = reader->metadata();
  ASSERT_EQ(metadata.tensors.size(), 3U);
  EXPECT_EQ(metadata.tensors[0].key, "a");
  EXPECT_EQ(metadata.tensors[2].key, "c");
  EXPECT_THAT(read(*reader, 0), ElementsAre(7, 8, 9));
  EXPECT_THAT(read(*reader, 1), ElementsAre(3, 4));
  EXPECT_THAT(read(*reader, 2), ElementsAre(6));
  EXPECT_EQ(reader->object(0), Value(5));
  const auto file = reader->storage().open(metadata.files[metadata.tensors[0].places[0].file]);
  EXPECT_FALSE(reader->check_chunk(0, 0, *file));
  EXPECT_TRUE(reader->check_chunk(1, 0, *file));
}

}  // namespace
}  // namespace dckpt::overlaid_reader_test
