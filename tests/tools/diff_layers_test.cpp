#include "tools/dckpt/commands/diff_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dckpt::tool::diff_layers_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> keys_of(int layers) {
  std::vector<std::string> keys = {"embedding.weight"};
  for (int i = 0; i < layers; ++i)
    keys.push_back("decoder.layers." + std::to_string(i) + ".mlp.weight");
  return keys;
}

std::vector<std::string> lines_of(const std::vector<std::string>& keys, const DiffReport& report) {
  std::vector<std::string> lines;
  for (const DifferingLayers& row : differing_layers(keys, report))
    lines.push_back(row.names + " " + row.share);
  return lines;
}

Difference values_differ(const std::string& key, std::uint64_t count) {
  return {.key = key, .elements = ElementDifferences{.count = count, .elements = 10'000}};
}

TEST(DiffLayers, ShowWhereTensorsDifferMost) {
  const std::vector<std::string> keys = keys_of(32);
  DiffReport report;
  report.differences = {values_differ(keys[4], 1),
                        values_differ(keys[8], 5000),
                        values_differ(keys[9], 5000),
                        values_differ(keys[20], 1),
                        values_differ("optimizer.state.exp_avg." + keys[4], 500),
                        {.kind = Difference::Kind::kShape, .key = keys[32]}};
  EXPECT_THAT(lines_of(keys, report), ElementsAre("decoder 3 5.0%", "decoder 7…8 50.0%",
                                                  "decoder 19 <0.1%", "decoder 31 100%"));
}

TEST(DiffLayers, ATensorMayHoldAllLayers) {
  const std::string key = "optimizer.state.exp_avg.decoder.layers.mlp.weight";
  DiffReport report;
  report.differences = {
      {.key = key,
       .elements = ElementDifferences{.count = 30, .elements = 400, .by_layer = {0, 5, 25, 0}}}};
  EXPECT_THAT(lines_of({key}, report), ElementsAre("decoder 1 5.0%", "decoder 2 25.0%"));
}

TEST(DiffLayers, OtherDifferencesBelongToNoLayer) {
  DiffReport report;
  EXPECT_TRUE(differing_layers(keys_of(4), report).empty());
  report.differences = {values_differ("embedding.weight", 1),
                        {.kind = Difference::Kind::kObject, .key = "decoder.layers.1.state"},
                        {.kind = Difference::Kind::kCommon, .path = "iteration"}};
  EXPECT_TRUE(differing_layers(keys_of(4), report).empty());
}

}  // namespace
}  // namespace dckpt::tool::diff_layers_test
