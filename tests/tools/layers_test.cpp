#include "tools/dckpt/commands/layers.h"

#include <gtest/gtest.h>

namespace dckpt::tool::layers_test {
namespace {

std::string layer_text(std::string_view key) {
  const std::optional<LayerName> layer = layer_of(key);
  return layer ? layer->stack + " " + std::to_string(layer->number) : "none";
}

TEST(Layers, AreFoundInKeys) {
  EXPECT_EQ(layer_text("decoder.layers.3.mlp.weight"), "decoder 3");
  EXPECT_EQ(layer_text("optimizer.state.exp_avg.decoder.layers.12.mlp.weight"), "decoder 12");
  EXPECT_EQ(layer_text("model.layers.0"), "model 0");
  EXPECT_EQ(layer_text("transformer.h.7.attn.weight"), "transformer 7");
  EXPECT_EQ(layer_text("layers.1.weight"), "layers 1");
}

TEST(Layers, AreNotFoundWhereThereAreNone) {
  for (const char* const key : {"", ".", "decoder.layers.mlp.weight", "layers", "decoder.layers.",
                                "decoder.layers.99999999999999999999999.w",
                                "decoder.layers.100000.w", "embedding.3.weight"})
    EXPECT_EQ(layer_text(key), "none") << key;
}

TEST(Layers, SharePartsOfTensorsThatHoldThemAll) {
  CheckpointSummary summary;
  const auto add = [&](const char* key, Shape shape, std::uint64_t bytes) {
    TensorSummary tensor;
    tensor.key = key;
    tensor.shape = std::move(shape);
    tensor.bytes = bytes;
    summary.tensors.push_back(std::move(tensor));
  };
  summary.run.model = {{"layers", 4}};
  add("decoder.layers.mlp.weight", {4, 8}, 400);
  add("decoder.layers.3.extra", {8}, 7);
  add("decoder.layers.odd", {5}, 20);
  add("embedding.weight", {100}, 50);
  const LayerSizes sizes = layer_sizes(summary);
  ASSERT_EQ(sizes.stacks.size(), 1u);
  EXPECT_EQ(sizes.by_number(sizes.stacks.at("decoder")),
            (std::map<std::uint64_t, std::uint64_t>{{0, 100}, {1, 100}, {2, 100}, {3, 107}}));
  EXPECT_EQ(sizes.outside, 70u);
}

}  // namespace
}  // namespace dckpt::tool::layers_test
