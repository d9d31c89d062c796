#include "dist_checkpointing/load/requested_shapes.h"

#include <gmock/gmock.h>

#include <tuple>

#include "dist_checkpointing/load/load.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::requested_shapes_test {
namespace {

using ::testing::HasSubstr;

/// An (8, 15) tensor that Megatron had flattened in six pieces of (4, 5), saved again by a torch
/// that knows only the tensor of (2, 3, 20). It is stored in torch_dist and in a plain DCP
/// directory, and read by each rank alone and together.
class RequestedShapesTest : public SaveLoad,
                            public ::testing::WithParamInterface<std::tuple<Compat, bool>> {
 protected:
  void SetUp() override {
    Tensor stored = Tensor::zeros(DType::kFloat32, {2, 3, 20});
    for (std::int64_t i = 0; i < 120; ++i) {
      const std::int64_t piece = i / 20, element = i % 20;
      const std::int64_t row = piece / 3 * 4 + element / 5, column = piece % 3 * 5 + element % 5;
      stored.data<float>()[i] = static_cast<float>(row * 15 + column);
    }
    const bool dcp = std::get<0>(GetParam()) == Compat::kDcp;
    Value state = Value::dict({{kKey, dcp ? Value(stored) : ShardedTensor::whole(kKey, stored)}});
    if (!dcp) state["iteration"] = 1;
    save(state, checkpoint(),
         {.compat = std::get<0>(GetParam()),
          .planner = {.kind = dcp ? PlannerKind::kDcp : PlannerKind::kMegatron}});
  }

  LoadOptions options() const { return {.parallel = {.enabled = std::get<1>(GetParam())}}; }

  static constexpr const char* kKey = "optimizer.state.exp_avg.w";
};

TEST_P(RequestedShapesTest, ARangeSaysTheShapeThatTheMetadataLost) {
  run_ranks(3, [&](Communicator& comm) {
    StateDict state = Value::dict({{"iteration", 0}});
    if (std::get<0>(GetParam()) == Compat::kDcp) state = Value::dict({});
    if (comm.rank() < 2) {  // halves of the rows; the last rank requests none of it
      state[kKey] = ShardedTensor::from_flat_range(kKey, Tensor::zeros(DType::kFloat32, {60}),
                                                   {8, 15}, {8, 15}, {0, 0},
                                                   {60 * comm.rank(), 60 * comm.rank() + 60});
    }
    load(state, checkpoint(), options(), comm);
    if (comm.rank() == 2) return;
    const Tensor loaded = *state.at(kKey).as_sharded_tensor().data;
    for (std::int64_t i = 0; i < 60; ++i)
      EXPECT_EQ(loaded.data<const float>()[i], static_cast<float>(60 * comm.rank() + i));
  });
}

TEST_P(RequestedShapesTest, AShapeThatIsNotOfThesePiecesIsRefused) {
  for (const Shape& shape : {Shape{8, 16}, Shape{15, 8}, Shape{120}}) {
    const std::string error = error_of([&] {
      StateDict state = Value::dict(
          {{kKey, ShardedTensor::from_flat_range(kKey, Tensor::zeros(DType::kFloat32, {8}), shape,
                                                 shape, Shape(shape.size(), 0), {0, 8})}});
      load(state, checkpoint(), options());
    });
    EXPECT_THAT(error, HasSubstr("(2, 3, 20)"));
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, RequestedShapesTest,
                         ::testing::Combine(::testing::Values(Compat::kMegatron, Compat::kDcp),
                                            ::testing::Bool()));

}  // namespace
}  // namespace dckpt::requested_shapes_test
