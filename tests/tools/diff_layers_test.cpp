#include "tools/dckpt/commands/diff_layers.h"

#include <gtest/gtest.h>

#include "tests/tools/pictures/picture_text.h"

namespace dckpt::tool::diff_layers_test {
namespace {

using testing::kNarrow;
using testing::kWide;
using testing::text_of;

std::vector<std::string> keys_of(int layers) {
  std::vector<std::string> keys = {"embedding.weight"};
  for (int i = 0; i < layers; ++i)
    keys.push_back("decoder.layers." + std::to_string(i) + ".mlp.weight");
  return keys;
}

Difference values_differ(const std::string& key, std::uint64_t count) {
  return {.key = key, .elements = ElementDifferences{.count = count, .elements = 10'000}};
}

TEST(DiffLayers, ShowWhereTensorsDifferMost) {
  const std::vector<std::string> keys = keys_of(32);
  DiffReport report;
  report.differences = {values_differ(keys[4], 1),
                        values_differ(keys[8], 5000),
                        values_differ("optimizer.state.exp_avg." + keys[4], 500),
                        {.kind = Difference::Kind::kShape, .key = keys[32]}};
  EXPECT_EQ(text_of(layer_heat(keys, report, kWide)), R"(
  decoder   0 ···▓···█·······················█
  A cell for each layer: the share of the elements that differ, in the tensor
  that differs most. · none, ░ up to 0.1%, ▒ 1%, ▓ 10%, █ more.
)");
  EXPECT_EQ(text_of(layer_heat(keys, report, kNarrow)), R"(
  decoder   0 ···▓···█············
           20 ···········█
  A cell for each layer: the share of
  the elements that differ, in the
  tensor that differs most. · none, ░ up
  to 0.1%, ▒ 1%, ▓ 10%, █ more.
)");
}

TEST(DiffLayers, ATensorMayHoldAllLayers) {
  const std::string key = "optimizer.state.exp_avg.decoder.layers.mlp.weight";
  DiffReport report;
  report.differences = {
      {.key = key,
       .elements = ElementDifferences{.count = 30, .elements = 400, .by_layer = {0, 5, 25, 0}}}};
  EXPECT_EQ(text_of(layer_heat(std::vector<std::string>{key}, report, kWide)), R"(
  decoder  0 ·▓█·
  A cell for each layer: the share of the elements that differ, in the tensor
  that differs most. · none, ░ up to 0.1%, ▒ 1%, ▓ 10%, █ more.
)");
}

TEST(DiffLayers, OfOtherDifferencesThereIsNoPicture) {
  DiffReport report;
  EXPECT_TRUE(layer_heat(keys_of(4), report, kWide).empty());
  report.differences = {values_differ("embedding.weight", 1),
                        {.kind = Difference::Kind::kObject, .key = "decoder.layers.1.state"},
                        {.kind = Difference::Kind::kCommon, .path = "iteration"}};
  EXPECT_TRUE(layer_heat(keys_of(4), report, kWide).empty());
}

}  // namespace
}  // namespace dckpt::tool::diff_layers_test
