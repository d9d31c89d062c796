#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "configs/maps/key_map.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::experts_in_rows_test {
namespace {

using testing::contents_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Model;

/// Experts follow each other in the rows of three matrices, as in DBRX, where the last is
/// transposed.
KeyMap stacked() {
  return KeyMap::from_text(R"(version: 1
family: stacked
numbers:
  num_experts: {args: num_experts, hf: experts}
tensors:
  - {megatron: "decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc1.weight", gated: true, hf: ["{l}.w1", "{l}.v1"], transform: [experts_in_rows: num_experts, concat_rows]}
  - {megatron: "decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc2.weight", hf: "{l}.w2", transform: [experts_in_rows: num_experts, transpose]}
)");
}

/// Returns two experts of three rows.
Model in_hugging_face() {
  Model model{.config = R"({"experts": 2})"};
  for (const char* const layer : {"0", "1"}) {
    for (const char* const name : {".w1", ".v1", ".w2"})
      model.tensors.emplace_back(std::string(layer) + name, Shape{6, 4});
  }
  return model;
}

std::unique_ptr<CheckpointReader> mapped(std::unique_ptr<CheckpointReader> source,
                                         std::vector<std::string> set = {}) {
  const KeyMap map = stacked();
  return mapped_reader(std::move(source), {"stacked", std::move(set)}, nullptr, {.map = &map});
}

/// Returns the elements of a tensor in their order.
std::vector<std::int32_t> elements(const CheckpointReader& reader, const std::string& key) {
  for (std::size_t i = 0; i < reader.metadata().tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = reader.metadata().tensors[i];
    if (tensor.key != key) continue;
    const Tensor content = read_box(reader, i, whole(tensor.size));
    std::vector<std::int32_t> values(content.bytes().size() / sizeof(std::int32_t));
    std::memcpy(values.data(), content.bytes().data(), content.bytes().size());
    return values;
  }
  return {};
}

TEST(ExpertsInRows, EachExpertHasItsRowsInEveryLayout) {
  const auto source = in_hugging_face().open();
  const auto w1 = elements(*source, "1.w1"), v1 = elements(*source, "1.v1"),
             w2 = elements(*source, "1.w2");
  const auto single = mapped(in_hugging_face().open(), {"layout=singleton"});
  const std::string expert = "decoder.layers.1.mlp.experts.experts.1.";
  EXPECT_EQ(elements(*single, expert + "linear_fc1.weight_w"),
            std::vector<std::int32_t>(w1.begin() + 12, w1.end()));
  EXPECT_EQ(elements(*single, expert + "linear_fc1.weight_v"),
            std::vector<std::int32_t>(v1.begin() + 12, v1.end()));
  std::vector<std::int32_t> transposed;
  for (std::size_t column = 0; column < 4; ++column) {
    for (std::size_t row = 3; row < 6; ++row) transposed.push_back(w2[row * 4 + column]);
  }
  EXPECT_EQ(elements(*single, expert + "linear_fc2.weight"), transposed);
  for (const char* const layout : {"homogeneous", "non-homogeneous", "singleton"}) {
    auto megatron = mapped(in_hugging_face().open(), {std::string("layout=") + layout});
    EXPECT_EQ(contents_of(*mapped(std::move(megatron))), contents_of(*source)) << layout;
  }
}

TEST(ExpertsInRows, TheirCountDividesTheRows) {
  EXPECT_THAT(error_of([] { mapped(in_hugging_face().open(), {"num_experts=4"}); }).message(),
              HasSubstr("the shape (6, 4) cannot be divided into the rows of 4 experts"));
}

TEST(ExpertsInRows, IsTheFirstStepOfRowsOfExperts) {
  const auto problem = [](const std::string& row) {
    return error_of([&] {
             KeyMap::from_text("version: 1\nfamily: mine\nnumbers: {}\ntensors:\n  - " + row);
           })
        .message();
  };
  const std::string expected = "'experts_in_rows' is the first step of a row with {e}";
  EXPECT_THAT(problem("{megatron: \"a.{e}\", hf: b, transform: [transpose, experts_in_rows: 2]}"),
              HasSubstr(expected));
  EXPECT_THAT(problem("{megatron: \"a.{l}\", hf: \"b.{l}\", transform: {experts_in_rows: 2}}"),
              HasSubstr(expected));
  EXPECT_THAT(problem("{megatron: \"a.{e}\", hf: \"b.{e}\", transform: {experts_in_rows: 2}}"),
              HasSubstr(expected));
}

}  // namespace
}  // namespace dckpt::experts_in_rows_test
