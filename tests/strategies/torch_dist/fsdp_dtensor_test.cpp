#include "strategies/torch_dist/fsdp_dtensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt::fsdp_dtensor_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Value args(int num_layers) {
  Opaque made{.form = Opaque::Form::kNew, .callable = Global{"argparse", "Namespace"}};
  made.states.push_back(Value::dict({{"num_layers", num_layers}}));
  return made;
}

/// Returns the metadata of a model with `layers` layers saved by `stages` pipeline stages.
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

/// Returns the leftovers of two stages of two ranks and two layers each: layer 0 of rank 2, layer 1
/// of rank 1.
Metadata leftovers() {
  Metadata made = metadata(2, 2);
  made.files = {"__1_0.distcp", "__2_0.distcp"};
  made.tensors[0].places = {{.file = 1}};
  made.tensors[1].places = {{.file = 0}, {.file = 0}};
  for (const TensorStorageMetadata& tensor : made.tensors)
    made.paths.emplace_back(tensor.key, KeyPath{"model", tensor.key.substr(6)});
  return made;
}

Value args_of_stages() {
  Opaque made = args(4).as_opaque();
  made.states[0]["world_size"] = 4;
  made.states[0]["pipeline_model_parallel_size"] = 2;
  made.states[0]["virtual_pipeline_model_parallel_size"] = Value();
  return made;
}

TEST(FsdpDTensor, LayersGetTheNumbersOfTheStageThatWroteThem) {
  Metadata made = leftovers();
  renumber_layers(made, args_of_stages());
  EXPECT_EQ(made.tensors[0].key, "model.module.decoder.layers.2.mlp.weight");
  EXPECT_EQ(made.tensors[1].key, "model.module.decoder.layers.1.mlp.weight");
  EXPECT_EQ(made.paths[0].first, made.tensors[0].key);
  EXPECT_EQ(made.paths[0].second, (KeyPath{"model", "module.decoder.layers.2.mlp.weight"}));
  Metadata whole = metadata(4, 2);  // nothing was overwritten
  renumber_layers(whole, args_of_stages());
  EXPECT_EQ(whole.tensors[3].key, "model.module.decoder.layers.3.mlp.weight");
}

TEST(FsdpDTensor, LayersOfUnknownStagesAreNotRenumbered) {
  const auto fails = [](Metadata made, const Value& args) {
    const CheckpointError error = error_of([&] { renumber_layers(made, args); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return std::string(error.what());
  };
  EXPECT_THAT(fails(leftovers(), args(4)), HasSubstr("args do not say 'world_size'"));
  Opaque uneven = args_of_stages().as_opaque();
  uneven.states[0]["decoder_first_pipeline_num_layers"] = 1;
  EXPECT_THAT(fails(leftovers(), uneven), HasSubstr("decoder_first_pipeline_num_layers"));
  uneven.states[0]["decoder_first_pipeline_num_layers"] = Value();
  uneven.states[0]["account_for_loss_in_pipeline_split"] = true;
  EXPECT_THAT(fails(leftovers(), uneven), HasSubstr("account_for_loss_in_pipeline_split"));
  Metadata mixed = leftovers();
  mixed.tensors[1].places[1].file = 1;
  EXPECT_THAT(fails(mixed, args_of_stages()), HasSubstr("parts of it are of different"));
  Metadata elsewhere = leftovers();
  elsewhere.files[0] = "data";
  EXPECT_THAT(fails(elsewhere, args_of_stages()), HasSubstr("does not say which pipeline stage"));
}

}  // namespace
}  // namespace dckpt::fsdp_dtensor_test
