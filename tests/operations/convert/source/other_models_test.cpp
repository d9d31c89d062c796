// Conversions that average models or join their tensors.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dist_checkpointing/save/save.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/operations/convert/conversions.h"

namespace dckpt::other_models_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::refusal_of;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kRows = 700;  // more elements than are summed at a time
constexpr std::int64_t kColumns = 130;

class OtherModels : public testing::Conversions {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;

  static Tensor values(float first, Shape shape) {
    Tensor tensor = Tensor::empty(DType::kFloat32, shape);
    auto* const data = reinterpret_cast<float*>(tensor.mutable_data());
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      data[i] = first + static_cast<float>(i % 1009) / 16;
    return tensor;
  }
  void write(const std::string& name, const Tensors& tensors, const SaveOptions& options) const {
    StateDict state;
    for (const auto& [key, tensor] : tensors)
      state[Value(key)] = ShardedTensor::from_rank_offsets(key, tensor, {});
    state["step"] = 7;
    save(state, at(name), options);
  }
  /// Writes a model whose elements are `first` more than those of the model 0.
  void write_model(const std::string& name, float first, const SaveOptions& options = {}) const {
    write(name,
          {{"w", values(first, {kRows, kColumns})},
           {"b", values(2 * first, {5})},
           {"optimizer.state.exp_avg.w", values(first, {2})}},
          options);
  }
  std::vector<float> read(const std::string& name, const std::string& key) const {
    const auto reader = open_checkpoint(at(name));
    const auto& tensors = reader->metadata().tensors;
    const auto found = std::ranges::find(tensors, key, &TensorStorageMetadata::key);
    if (found == tensors.end()) return {};
    const Tensor part = read_box(*reader, static_cast<std::size_t>(found - tensors.begin()),
                                 whole(found->global_shape()));
    return {part.data<const float>(), part.data<const float>() + part.numel()};
  }
  std::vector<std::string> keys(const std::string& name) const {
    std::vector<std::string> keys;
    const auto reader = open_checkpoint(at(name));
    for (const auto& tensor : reader->metadata().tensors) keys.push_back(tensor.key);
    return keys;
  }
  ConvertOptions averaging(const std::vector<std::string>& others,
                           std::vector<double> weights = {}) const {
    ConvertOptions options;
    for (const std::string& other : others) options.source.average.emplace_back(at(other));
    options.source.weights = std::move(weights);
    return options;
  }
};

TEST_F(OtherModels, TheAverageIsThatOfEachElementInAnyFormatAndSharding) {
  write_model("a", 0);
  write_model("b", 1, {.compat = Compat::kDcp});
  write_model("c", 5, {.strategy = {.name = "zarr"}});
  const ConvertReport report = run("a", "mean", averaging({"b", "c"}));
  const std::vector<float> first = read("a", "w"), mean = read("mean", "w");
  ASSERT_EQ(mean.size(), first.size());
  for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(mean[i], first[i] + 2, 1e-4) << i;
  EXPECT_NEAR(read("mean", "b")[4], read("a", "b")[4] + 4, 1e-5);
  EXPECT_THAT(keys("mean"), UnorderedElementsAre("b", "w"));
  EXPECT_THAT(report.findings, Contains(Field(&Finding::code, FindingCode::kOptimizerLeftOut)));
  EXPECT_EQ(report.steps[0].name, "average");

  ConvertOptions cut = averaging({"b", "c"});
  cut.target.ranks = 3;
  run("a", "cut", cut);
  EXPECT_EQ(differences(at("mean"), at("cut")), 0U);
}

TEST_F(OtherModels, WeightsMayBeNegativeAndSumToOne) {
  write_model("a", 1);
  write_model("b", 3);
  run("a", "x", averaging({"b"}, {3, -2}));
  EXPECT_EQ(read("x", "b")[0], 3 * 2.0F - 2 * 6.0F);
  EXPECT_THAT(refusal_of([&] {
                run("a", "y", averaging({"b"}, {1, 1}));
              }).second,
              HasSubstr("sum to 2"));
  EXPECT_THAT(refusal_of([&] { run("a", "y", averaging({"b"}, {1})); }).second,
              HasSubstr("an average of 2 models needs as many weights, found 1"));
  EXPECT_THAT(refusal_of([&] { run("a", "y", averaging({}, {1})); }).second,
              HasSubstr("weights are for averages"));
}

TEST_F(OtherModels, ModelsThatDifferAreRefusedWithAllDifferences) {
  write_model("a", 0);
  write("b", {{"w", values(0, {kRows + 2, kColumns})}, {"extra", values(0, {1})}}, {});
  const auto [code, message] = refusal_of([&] { run("a", "x", averaging({"b"})); });
  EXPECT_EQ(code, ErrorCode::kMismatch);
  EXPECT_THAT(message, AllOf(HasSubstr("'w' has the shape (700, 130), and (702, 130)"),
                             HasSubstr("'b' is missing"), HasSubstr("'extra' is only in")));
  EXPECT_FALSE(std::filesystem::exists(at("x")));
}

TEST_F(OtherModels, ElementsThatCannotBeAveragedMustBeEqual) {
  const auto with_counts = [&](const std::string& name, std::int64_t count) {
    Tensor counts = Tensor::zeros(DType::kInt64, {2});
    reinterpret_cast<std::int64_t*>(counts.mutable_data())[1] = count;
    write(name, {{"counts", counts}, {"w", values(0, {2})}}, {});
  };
  with_counts("a", 1);
  with_counts("same", 1);
  with_counts("other", 2);
  run("a", "x", averaging({"same"}));
  EXPECT_THAT(refusal_of([&] { run("a", "y", averaging({"other"})); }).second,
              HasSubstr("'counts' is int64, which is not averaged, and differs"));
}

TEST_F(OtherModels, DamageOfAnotherModelIsFound) {
  write_model("a", 0);
  write_model("b", 1);
  for (const auto& entry : std::filesystem::directory_iterator(at("b"))) {
    if (entry.path().extension() != ".distcp" || entry.file_size() < 100'000) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.file_size() / 2));
    file.put('\x55');
  }
  EXPECT_EQ(refusal_of([&] { run("a", "x", averaging({"b"})); }).first, ErrorCode::kCorrupt);
}

TEST_F(OtherModels, TheMainParametersOfTheOptimizerBecomeTheWeights) {
  write("a",
        {{"w", values(0, {4, 3})},
         {"buffer", values(5, {2})},
         {"optimizer.state.fp32_param.w", values(7, {4, 3})},
         {"optimizer.state.exp_avg.w", values(9, {4, 3})}},
        {});
  ConvertOptions options{.source = {.main_parameters = true}};
  options.source.keys.exclude = {"optimizer.*"};
  const ConvertReport report = run("a", "x", options);
  EXPECT_EQ(read("x", "w"), read("a", "optimizer.state.fp32_param.w"));
  EXPECT_EQ(read("x", "buffer"), read("a", "buffer"));
  EXPECT_THAT(report.findings,
              Contains(Field(&Finding::message, HasSubstr("stay as they are: 'buffer'"))));
  EXPECT_THAT(refusal_of([&] { run("x", "y", options); }).second,
              HasSubstr("there are no main parameters"));
}

TEST_F(OtherModels, JoinedTensorsComeFromTheFirstModelThatHasThem) {
  const SaveOptions dcp{.compat = Compat::kDcp};
  write("language", {{"l", values(1, {4})}}, dcp);
  write("whole", {{"l", values(9, {4})}, {"v", values(2, {3})}}, dcp);
  write("more", {{"v", values(8, {3})}, {"x", values(3, {2})}}, dcp);
  ConvertOptions options;
  options.source.join = {Location(at("whole")), Location(at("more"))};
  const ConvertReport report = run("language", "joined", options);
  EXPECT_THAT(keys("joined"), ElementsAre("l", "v", "x"));
  EXPECT_EQ(read("joined", "l")[0], 1);
  EXPECT_EQ(read("joined", "v")[0], 2);
  EXPECT_EQ(read("joined", "x")[0], 3);
  EXPECT_THAT(report.findings,
              Contains(Field(&Finding::message, HasSubstr("taken from a model before it: 'l'"))));
  options.source.join = {Location(at("language"))};
  EXPECT_THAT(refusal_of([&] { run("whole", "y", options); }).second,
              HasSubstr("would change nothing"));
}

TEST_F(OtherModels, OneModelUnderTwoPrefixesIsNotJoinedToItself) {
  const std::string name = "layers.0.mlp.weight";
  write("text", {{"model." + name, values(1, {4})}, {"lm_head.weight", values(2, {4})}}, {});
  struct Case {
    std::string prefix;
    std::string said;
  };
  for (const Case& one :
       std::vector<Case>{{"model.language_model.",
                          "under the prefix 'model.' in place of 'model.language_model.'"},
                         {"language_model.model.", "in place of 'language_model.model.'"},
                         {"module.model.", "in place of 'module.model.'"},
                         {"", "in place of ''"}}) {
    SCOPED_TRACE(one.prefix);
    std::filesystem::remove_all(at("whole"));
    write("whole", {{one.prefix + name, values(3, {4})}, {"visual.weight", values(4, {4})}}, {});
    ConvertOptions options;
    options.source.join = {Location(at("whole"))};
    const auto [code, message] = refusal_of([&] { run("text", "joined", options); });
    EXPECT_EQ(code, ErrorCode::kMismatch);
    EXPECT_THAT(message, HasSubstr(one.said));
  }
  for (const std::string& other :
       {"model.vision." + name, "encoder." + name, "model.visual." + name}) {
    std::filesystem::remove_all(at("other"));
    write("other", {{other, values(3, {4})}}, {});
    ConvertOptions options;
    options.source.join = {Location(at("other"))};
    options.target.overwrite = true;
    EXPECT_THAT(messages_of(run("text", "joined", options).findings),
                Contains(AllOf(HasSubstr("the common state of"), HasSubstr("'step'"))));
  }
}

TEST_F(OtherModels, ObjectsAreTheFirstModelsAndOthersAreNamed) {
  const auto write_dcp = [&](const std::string& name, const std::string& tensor,
                             const std::string& object) {
    StateDict state;
    state[Value(tensor)] = ShardedTensor::from_rank_offsets(tensor, values(1, {4}), {});
    state[Value(object)] = "text";
    save(state, at(name), {.compat = Compat::kDcp});
  };
  write_dcp("first", "w", "kept");
  write_dcp("same", "w", "unlike");
  write_dcp("other", "x", "lost");
  write_dcp("clash", "kept", "kept_not");
  const auto dropped = [](const std::string& key) {
    return Contains(AllOf(Field(&Finding::code, FindingCode::kKeysDropped),
                          Field(&Finding::keys, ElementsAre(key)),
                          Field(&Finding::message, HasSubstr("1 object of"))));
  };
  ConvertOptions options;
  options.source.join = {Location(at("other"))};
  EXPECT_THAT(run("first", "joined", options).findings, dropped("lost"));
  EXPECT_THAT(run("first", "averaged", averaging({"same"})).findings, dropped("unlike"));
  options.source.join = {Location(at("clash"))};
  const auto [code, message] = refusal_of([&] { run("first", "y", options); });
  EXPECT_EQ(code, ErrorCode::kMismatch);
  EXPECT_THAT(message, AllOf(HasSubstr("'kept'"), HasSubstr("this is an object in"),
                             HasSubstr("and a tensor in")));
}

}  // namespace
}  // namespace dckpt::other_models_test
