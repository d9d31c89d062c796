#include "strategies/torch_dist/directory.h"

#include <gtest/gtest.h>

#include <map>

#include "mapping/megatron/optimizer_keys.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/golden.h"

namespace dckpt::directory_test {
namespace {

/// Opens a checkpoint of Megatron 0.14 that says nothing about the shapes of flattened tensors.
std::unique_ptr<CheckpointReader> without_shapes(bool recover) {
  TorchDistReadOptions options;
  options.recover_flattened_shapes = recover;
  return open_torch_dist(posix_storage(testing::golden("mcore-0.14-flattened-no-mcore-data")),
                         options);
}

TEST(LostShapes, AreThoseOfTheParameters) {
  const auto reader = without_shapes(true);
  std::map<std::string_view, Shape> models;
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
    if (!is_optimizer_key(tensor.key)) models[tensor.key] = tensor.size;
  std::size_t states = 0;
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors) {
    const auto model = models.find(parse_optimizer_state_key(tensor.key).model_key);
    EXPECT_EQ(tensor.flattened_shape.has_value(), model != models.end()) << tensor.key;
    if (model == models.end()) continue;
    EXPECT_EQ(tensor.flattened_shape, model->second) << tensor.key;
    ++states;
  }
  EXPECT_EQ(states, 51U);
}

TEST(LostShapes, AreLeftAloneOnRequest) {
  const auto reader = without_shapes(false);
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
    EXPECT_FALSE(tensor.flattened_shape) << tensor.key;
}

}  // namespace
}  // namespace dckpt::directory_test
