#include "strategies/torch_dist/fsdp_dtensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Value args(int num_layers) {
  Opaque made{.form = Opaque::Form::kNew, .callable = Global{"argparse", "Namespace"}};
  made.states.push_back(Value::dict({{"num_layers", num_layers}}));
  return made;
}

/// Of a model with `layers` layers that `stages` pipeline stages have saved.
Metadata metadata(int layers, int stages) {
  Metadata metadata;
  for (int layer = 0; layer < layers; ++layer) {
    metadata.tensors.emplace_back().key =
        "model.module.decoder.layers." + std::to_string(layer) + ".mlp.weight";
  }
  for (int stage = 0; stage < stages; ++stage) {
    metadata.objects.push_back(
        {.key = "rng_state.(" + std::to_string(stage) + ", 0).0.random_rng_state", .place = {}});
  }
  metadata.objects.push_back({.key = "checkpoint_version", .place = {}});
  return metadata;
}

TEST(FsdpDTensor, IsKnownByItsKeys) {
  EXPECT_TRUE(is_fsdp_dtensor(metadata(2, 1)));
  EXPECT_FALSE(is_fsdp_dtensor(metadata(0, 1)));
  const auto open = [](const char* name) {
    return open_torch_dist(posix_storage(testing::golden(name)))->info().producer;
  };
  EXPECT_EQ(open("dcp-fsdp-dtensor-layout"), "Megatron-FSDP, fsdp_dtensor");
  EXPECT_EQ(open("dcp-fsdp2-dtensor"), "PyTorch DCP");
}

TEST(FsdpDTensor, LayersThatStagesHaveOverwrittenAreMissed) {
  const CheckpointError error = error_of([] { check_layers(metadata(2, 2), args(4)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("the model has 4 layers, but the checkpoint only 2, and 2 "
                                      "pipeline stages have saved it"));
  check_layers(metadata(4, 2), args(4));
  check_layers(metadata(2, 1), args(4));
  check_layers(metadata(0, 2), args(4));
  check_layers(metadata(2, 2), Value::dict({}));
}

}  // namespace
}  // namespace dckpt
