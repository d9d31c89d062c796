// Keys that are loaded into the same memory: tied weights, views of a fused tensor.

#include "dist_checkpointing/load/shared_memory.h"

#include <gmock/gmock.h>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::shared_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StateDict pair_of(const Tensor& a, const Tensor& b) {
  return Value::dict({{"a", ShardedTensor::whole("embedding.weight", a)},
                      {"b", ShardedTensor::whole("output_layer.weight", b)}});
}

class SharedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const Tensor values = arange({4, 6});
    save(pair_of(values, values), temp_.path() / "tied");
    save(pair_of(values.narrow(1, 0, 3).contiguous(), values.narrow(1, 3, 3).contiguous()),
         temp_.path() / "halves");
  }
  std::string message_of(const char* name, StateDict into, const LoadOptions& options = {}) const {
    return testing::error_of([&] { load(into, temp_.path() / name, options); }).what();
  }
  void loads(const char* name, StateDict into) const { load(into, temp_.path() / name); }

  TempDir temp_;
};

TEST_F(SharedMemory, TakesKeysWithEqualValues) {
  const Tensor tied = Tensor::zeros(DType::kFloat32, {4, 6});
  loads("tied", pair_of(tied, tied));
  EXPECT_TRUE(equal(tied, arange({4, 6})));
}

TEST_F(SharedMemory, RefusesKeysWithOtherValues) {
  const Tensor one = Tensor::zeros(DType::kFloat32, {4, 3});
  EXPECT_THAT(message_of("halves", pair_of(one, one)),
              AllOf(HasSubstr("embedding.weight"), HasSubstr("output_layer.weight"),
                    HasSubstr("different values for them")));
}

TEST_F(SharedMemory, ViewsWithoutACommonElementAreNeighbors) {
  const Tensor columns = Tensor::zeros(DType::kFloat32, {4, 6});
  loads("halves", pair_of(columns.narrow(1, 0, 3), columns.narrow(1, 3, 3)));
  EXPECT_TRUE(equal(columns, arange({4, 6})));
  const auto every_other = [&](std::size_t first) {
    return Tensor(DType::kFloat32, {4, 3}, {6, 2}, columns.mutable_data() + first * sizeof(float),
                  columns.owner());
  };
  loads("halves", pair_of(every_other(0), every_other(1)));
  EXPECT_EQ(columns.data<float>()[1], 3.0F);
  EXPECT_EQ(columns.data<float>()[2], 1.0F);
}

TEST_F(SharedMemory, RefusesViewsThatShareSomeElements) {
  const Tensor columns = Tensor::zeros(DType::kFloat32, {4, 6});
  EXPECT_THAT(message_of("halves", pair_of(columns.narrow(1, 0, 3), columns.narrow(1, 2, 3))),
              HasSubstr("different values for them"));
  const Tensor flat = Tensor::zeros(DType::kFloat32, {24});
  const Tensor turned(DType::kFloat32, {4, 3}, {1, 4}, flat.mutable_data(), flat.owner());
  EXPECT_THAT(message_of("halves", pair_of(flat.narrow(0, 0, 12).view({4, 3}), turned)),
              HasSubstr("different values for them"));
}

TEST_F(SharedMemory, ComparesWhatACastMakesOfTheValues) {
  const Tensor one = Tensor::zeros(DType::kFloat64, {4, 3});
  EXPECT_THAT(message_of("halves", pair_of(one, one), {.cast = Cast::kAllow}),
              HasSubstr("different values for them"));
}

}  // namespace
}  // namespace dckpt::shared_memory_test
