#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

// The shipped map "megatron" converts one layout of Megatron's keys to another.

namespace dckpt::megatron_layouts_test {
namespace {

using testing::golden;
using ::testing::IsEmpty;

constexpr const char* kDense = "mcore-0.16-fully-reshardable-tp2pp2dp2";
constexpr const char* kExperts = "mcore-head-moe-ep2";

ConvertOptions with_layout(const std::string& layout, const std::string& names = "local") {
  return {.source = {.map = {"megatron", {"keys=megatron", "layout=" + layout, "names=" + names}}},
          .target = {.strategy = "torch_dist"},
          .checks = {.round_trip = true}};
}

TEST(MegatronLayouts, LayersAndExpertsAreAxesOrInTheKeys) {
  struct Expected {
    const char* golden;
    const char* layout;
    const char* key;
    Shape size;
  };
  for (const auto& [name, layout, key, size] : {
           Expected{kDense, "non-homogeneous", "decoder.layers.1.mlp.linear_fc1.weight", {128, 32}},
           Expected{kDense, "singleton", "decoder.layers.1.mlp.linear_fc1.weight_v", {64, 32}},
           Expected{kExperts,
                    "non-homogeneous",
                    "decoder.layers.1.mlp.experts.experts.linear_fc1.weight",
                    {4, 64, 32}},
           Expected{kExperts,
                    "singleton",
                    "decoder.layers.1.mlp.experts.experts.3.linear_fc1.weight_w",
                    {32, 32}},
       }) {
    TempDir directory;
    convert(golden(name), directory / "made", with_layout(layout));
    const auto made = open_checkpoint(directory / "made");
    for (const std::string prefix : {"", "optimizer.state.param.", "optimizer.state.exp_avg."}) {
      const auto* const tensor = made->metadata().find_tensor(prefix + key);
      ASSERT_NE(tensor, nullptr) << prefix << key;
      EXPECT_EQ(tensor->size, size);
    }
    convert(directory / "made", directory / "back", with_layout("homogeneous"));
    EXPECT_THAT(
        diff(*open_checkpoint(golden(name)), *open_checkpoint(directory / "back")).differences,
        IsEmpty())
        << name << " " << layout;
  }
}

/// In models with experts, the norm in front of them has another name in each layout.
TEST(MegatronLayouts, NormsOfLocalLayersBecomeThoseOfTransformerEngineAndBack) {
  TempDir directory;
  convert(golden(kExperts), directory / "te", with_layout("homogeneous", "te"));
  const auto made = open_checkpoint(directory / "te");
  EXPECT_NE(made->metadata().find_tensor("decoder.layers.pre_mlp_layernorm.weight"), nullptr);
  EXPECT_EQ(made->metadata().find_tensor("decoder.layers.mlp.linear_fc1.layer_norm_weight"),
            nullptr);
  convert(directory / "te", directory / "back", with_layout("homogeneous", "local"));
  EXPECT_THAT(
      diff(*open_checkpoint(golden(kExperts)), *open_checkpoint(directory / "back")).differences,
      IsEmpty());
}

}  // namespace
}  // namespace dckpt::megatron_layouts_test
