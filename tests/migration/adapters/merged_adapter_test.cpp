#include "migration/adapters/merged_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>

#include "strategies/safetensors/safetensors_reader.h"
#include "strategies/storage/posix.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/migration/adapters/adapter_folder.h"
#include "tests/support/expect_error.h"

namespace dckpt::merged_adapter_test {
namespace {

using testing::adapter_data;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<CheckpointReader> open(const std::string& name, const std::string& part) {
  return open_safetensors(posix_storage(adapter_data(name, part)));
}

std::vector<float> read(const CheckpointReader& reader, const std::string& key) {
  for (std::size_t i = 0; i < reader.metadata().tensors.size(); ++i) {
    if (reader.metadata().tensors[i].key != key) continue;
    const Tensor part = read_box(reader, i, whole(reader.metadata().tensors[i].size));
    return {part.data<const float>(), part.data<const float>() + part.numel()};
  }
  return {};
}

/// Llama covers rank and alpha by pattern, a rank-stabilized scale, biases and a module trained as
/// a whole, in bfloat16. GPT-2 covers weights stored as (in, out), and an embedding, in float32,
/// and the experts of Qwen 3 factors of fused parameters.
TEST(MergedAdapter, IsWhatPeftMerges) {
  for (const std::string name : {"llama", "gpt2", "experts"}) {
    const PeftAdapter adapter = open_peft_adapter(posix_storage(adapter_data(name, "adapter")));
    const View view = merged_adapter(open(name, "base"), adapter);
    const auto expected = open(name, "merged");
    const Metadata& metadata = expected->metadata();
    ASSERT_EQ(view.reader->metadata().tensors.size(), metadata.tensors.size());
    for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata.tensors[i];
      ASSERT_EQ(view.reader->metadata().tensors[i].key, tensor.key);
      const Tensor made = read_box(*view.reader, i, whole(tensor.size));
      const Tensor wanted = read_box(*expected, i, whole(tensor.size));
      EXPECT_EQ(made.dtype(), wanted.dtype()) << tensor.key;
      EXPECT_TRUE(std::ranges::equal(made.bytes(), wanted.bytes())) << tensor.key;
    }
  }
}

enum class ExpertsForm : std::uint8_t { kRows, kColumns };

/// Returns the layers' experts of a model with one tensor each, as one tensor for all of them:
/// (experts, out, in) as in Qwen 3, or (experts, in, out) as in Llama 4.
FakeReader fused(const CheckpointReader& model, ExpertsForm form) {
  constexpr std::int64_t kExperts = 4;
  FakeReader result;
  for (const std::string layer : {"0", "1"}) {
    const std::string module = "model.layers." + layer + ".mlp.experts.";
    for (const std::vector<std::string>& names :
         {std::vector<std::string>{"gate_proj", "up_proj"}, {"down_proj"}}) {
      std::vector<float> elements;
      Shape shape;
      for (std::int64_t expert = 0; expert < kExperts; ++expert) {
        std::vector<float> one;
        for (const std::string& name : names)
          std::ranges::copy(read(model, module + std::to_string(expert) + "." + name + ".weight"),
                            std::back_inserter(one));
        const std::size_t in = names.size() == 2 ? 16 : 12, out = one.size() / in;
        const bool turned = form == ExpertsForm::kColumns;
        shape = {kExperts, static_cast<std::int64_t>(turned ? in : out),
                 static_cast<std::int64_t>(turned ? out : in)};
        for (std::size_t i = 0; i < one.size(); ++i)
          elements.push_back(turned ? one[i % out * in + i / out] : one[i]);
      }
      result.tensor(module + (names.size() == 2 ? "gate_up_proj" : "down_proj"), DType::kFloat32,
                    shape, elements);
    }
    const std::string query = "model.layers." + layer + ".self_attn.q_proj.weight";
    result.tensor(query, DType::kFloat32, {16, 16}, read(model, query));
  }
  result.write();
  return result;
}

void expect_equal(const CheckpointReader& made, const CheckpointReader& wanted) {
  ASSERT_EQ(made.metadata().tensors.size(), wanted.metadata().tensors.size());
  for (std::size_t i = 0; i < wanted.metadata().tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = wanted.metadata().tensors[i];
    EXPECT_EQ(made.metadata().tensors[i].key, tensor.key);
    EXPECT_EQ(made.metadata().tensors[i].size, tensor.size);
    EXPECT_EQ(read(made, tensor.key), read(wanted, tensor.key)) << tensor.key;
  }
}

TEST(MergedAdapter, FusedExpertsGetWhatSingleOnesGet) {
  const PeftAdapter adapter = open_peft_adapter(posix_storage(adapter_data("experts", "adapter")));
  for (const ExpertsForm form : {ExpertsForm::kRows, ExpertsForm::kColumns}) {
    const View view = merged_adapter(
        std::make_unique<FakeReader>(fused(*open("experts", "base"), form)), adapter);
    expect_equal(*view.reader, fused(*open("experts", "merged"), form));
    EXPECT_THAT(view.findings.front().keys,
                Contains("model.layers.1.mlp.experts.down_proj").Times(1));
  }
}

/// An adapter of modules of single experts, which older releases of transformers have.
TEST(MergedAdapter, AdaptersOfSingleExpertsAreMergedIntoFusedOnes) {
  auto tensors = std::make_shared<FakeReader>();
  PeftAdapter adapter{.config = {.rank = 2, .alpha = 4}};
  const auto add = [&](const std::string& path, std::int64_t in, std::int64_t out) {
    const std::size_t at = 2 * adapter.modules.size();
    tensors->tensor(path + "a", DType::kFloat32, {2, in},
                    std::vector<float>(static_cast<std::size_t>(2 * in), 0.5F));
    std::vector<float> b;
    for (std::int64_t i = 0; i < 2 * out; ++i) b.push_back(static_cast<float>(i + in));
    tensors->tensor(path + "b", DType::kFloat32, {out, 2}, b);
    adapter.modules.push_back({.path = path, .a = at, .b = at + 1});
  };
  add("model.layers.1.mlp.experts.2.gate_proj", 16, 12);
  add("model.layers.1.mlp.experts.2.up_proj", 16, 12);
  add("model.layers.0.mlp.experts.3.down_proj", 12, 16);
  tensors->write();
  adapter.reader = tensors;
  const View single = merged_adapter(open("experts", "base"), adapter);
  const View both = merged_adapter(
      std::make_unique<FakeReader>(fused(*open("experts", "base"), ExpertsForm::kRows)), adapter);
  expect_equal(*both.reader, fused(*single.reader, ExpertsForm::kRows));
  const auto columns = fused(*open("experts", "base"), ExpertsForm::kColumns);
  EXPECT_THAT(
      error_of([&] { merged_adapter(std::make_unique<FakeReader>(columns), adapter); }).message(),
      HasSubstr("the base model has no such tensor"));
}

TEST(MergedAdapter, FactorsOfExpertsThatDoNotFitAreNamed) {
  PeftAdapter adapter = open_peft_adapter(posix_storage(adapter_data("experts", "adapter")));
  const auto error = [&] {
    return error_of([&] { merged_adapter(open("experts", "base"), adapter); }).message();
  };
  ASSERT_EQ(adapter.experts.size(), 4U);
  const ExpertLora lora = adapter.experts.front();
  adapter.experts.front().experts = 5;
  EXPECT_THAT(error(), HasSubstr("the adapter has 5 experts, of which the base model lacks"));
  adapter.experts.front().experts = 3;
  EXPECT_THAT(error(), HasSubstr("the adapter has 3 experts, but the base model has more"));
  adapter.experts.front() = lora;
  adapter.experts.front().out = 20;
  EXPECT_THAT(error(), HasSubstr("an expert of the base model has the shape (24, 16), but lora_B × "
                                 "lora_A has (20, 16)"));
  adapter.experts.front() = lora;
  adapter.experts.front().module = "model.layers.7.mlp.experts";
  EXPECT_THAT(error(), HasSubstr("no such experts"));
  adapter.experts.erase(adapter.experts.begin());
  EXPECT_THAT(error(), AllOf(HasSubstr("was it saved completely?"),
                             HasSubstr("'model.layers.0.mlp.experts.0.gate_proj.weight'")));
}

/// An adapter with a module of rank 1 whose product is 2 × 3.
struct Small {
  std::shared_ptr<FakeReader> tensors = std::make_shared<FakeReader>();
  PeftAdapter adapter{.config = {.rank = 1, .alpha = 2}};

  Small() {
    tensors->tensor<float>("a", DType::kFloat32, {1, 3}, {1, 2, 3})
        .tensor<float>("b", DType::kFloat32, {2, 1}, {1, 10})
        .tensor<float>("head", DType::kFloat32, {2}, {5, 6});
    adapter.modules = {{.path = "model.q", .a = 0, .b = 1}};
  }
  View merge(FakeReader& base) {
    tensors->write();
    adapter.reader = tensors;
    return merged_adapter(std::make_unique<FakeReader>(base.write()), adapter);
  }
  CheckpointError refusal(FakeReader& base) {
    return error_of([&] { merge(base); });
  }
};

FakeReader base_with(const std::string& key, const Shape& shape) {
  FakeReader base;
  base.tensor(key, DType::kFloat32, shape,
              std::vector<float>(static_cast<std::size_t>(numel(shape)), 0));
  return base;
}

TEST(MergedAdapter, KeysMayLackOrHaveTheFirstPartOfAModel) {
  for (const char* const key : {"model.q.weight", "q.weight", "model.model.q.weight"}) {
    FakeReader base = base_with(key, {2, 3});
    EXPECT_THAT(read(*Small().merge(base).reader, key), ElementsAre(2, 4, 6, 20, 40, 60)) << key;
  }
}

/// The namings of transformers since 4.52, before for LLaVA, before for Qwen2-VL, and of the
/// language model alone.
TEST(MergedAdapter, KeysMayBeThoseOfAnotherNamingOfTheModel) {
  struct Naming {
    std::string query, head, tower;
  };
  const std::vector<Naming> namings{
      {"model.language_model.layers.0.q", "lm_head.weight", "model.visual.blocks.0.q"},
      {"language_model.model.layers.0.q", "language_model.lm_head.weight", "visual.blocks.0.q"},
      {"model.layers.0.q", "lm_head.weight", "visual.blocks.0.q"},
  };
  for (const Naming& in_model : namings) {
    for (const Naming& in_adapter : namings) {
      for (const bool has_tower : {true, false}) {
        FakeReader base = base_with(in_model.query + ".weight", {2, 3});
        base.tensor<float>(in_model.head, DType::kFloat32, {2}, {0, 0});
        base.tensor<float>(in_model.tower + ".weight", DType::kFloat32, {2, 3}, {0, 0, 0, 0, 0, 0});
        Small small;
        small.adapter.modules[0].path = in_adapter.query;
        small.adapter.whole = {{in_adapter.head, 2}};
        small.adapter.config.target_modules.names = {"q"};
        if (has_tower) small.adapter.modules.push_back({.path = in_adapter.tower, .a = 0, .b = 1});
        const View view = small.merge(base);
        const std::string named = in_adapter.query + " in " + in_model.query;
        EXPECT_THAT(read(*view.reader, in_model.query + ".weight"),
                    ElementsAre(2, 4, 6, 20, 40, 60))
            << named;
        EXPECT_THAT(read(*view.reader, in_model.head), ElementsAre(5, 6)) << named;
        EXPECT_THAT(read(*view.reader, in_model.tower + ".weight"),
                    has_tower ? ElementsAre(2, 4, 6, 20, 40, 60) : ElementsAre(0, 0, 0, 0, 0, 0))
            << named;
        if (in_adapter.query == in_model.query) {
          EXPECT_THAT(view.findings[0].message, Not(HasSubstr("the language model's keys have")));
        }
      }
    }
  }
}

TEST(MergedAdapter, OtherWeightsSayWhichWaySquareOnesAreStored) {
  struct Case {
    std::string what;
    bool flag;                                          // fan_in_fan_out
    std::vector<std::pair<std::string, Shape>> others;  // of the base
    bool has_module = false;  // the adapter changes the first of them, 2 × 3 or 3 × 2
    bool turned = false;
  };
  for (const auto& [what, flag, others, has_module, turned] : std::vector<Case>{
           {"only the flag", false, {}, false, false},
           {"only the flag", true, {}, false, true},
           {"a module", false, {{"model.q.weight", {3, 2}}}, true, true},
           {"a module", true, {{"model.q.weight", {2, 3}}}, true, false},
           {"a bias", false, {{"model.k.weight", {2, 6}}, {"model.k.bias", {6}}}, false, true},
           {"a bias", true, {{"model.k.weight", {6, 2}}, {"model.k.bias", {6}}}, false, false},
           {"no bias", true, {{"model.k.weight", {6, 2}}}, false, true},
           {"two sayings",
            true,
            {{"model.k.weight", {6, 2}},
             {"model.k.bias", {6}},
             {"model.v.weight", {2, 6}},
             {"model.v.bias", {6}}},
            false,
            true},
       }) {
    FakeReader base = base_with("model.square.weight", {2, 2});
    for (const auto& [key, shape] : others)
      base.tensor(key, DType::kFloat32, shape,
                  std::vector<float>(static_cast<std::size_t>(numel(shape)), 0));
    Small small;
    small.tensors->tensor<float>("square", DType::kFloat32, {1, 2}, {1, 2});
    if (!has_module) small.adapter.modules.clear();
    small.adapter.modules.push_back({.path = "model.square", .a = 3, .b = 1});
    small.adapter.config.fan_in_fan_out = flag;
    EXPECT_THAT(read(*small.merge(base).reader, "model.square.weight"),
                turned ? ElementsAre(2, 20, 4, 40) : ElementsAre(2, 4, 20, 40))
        << what << flag;
  }
}

TEST(MergedAdapter, SumsThatAreNotFiniteAreRefused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    float stored, of_adapter;
    double alpha;
    std::string said;  // empty: merged
  };
  for (const auto& [stored, of_adapter, alpha, said] : std::vector<Case>{
           {1, 2, 1, ""},
           {1, kNan, 1, "a weight is 1, and with what is added it becomes nan"},
           {1, kInfinity, 1, "it becomes inf"},
           {3e38F, 3e38F, 1, "it becomes inf"},
           {1, 3e38F, 1e9, "it becomes inf"},
           {kNan, 2, 1, ""},  // the base's own
           {kInfinity, 2, 1, ""},
           {kInfinity, -kInfinity, 1, ""},
       }) {
    FakeReader base;
    base.tensor<float>("model.q.weight", DType::kFloat32, {1, 1}, {stored});
    Small small;
    small.tensors->tensor<float>("x", DType::kFloat32, {1, 1}, {of_adapter});
    small.tensors->tensor<float>("one", DType::kFloat32, {1, 1}, {1});
    small.adapter.modules = {{.path = "model.q", .a = 3, .b = 4}};
    small.adapter.config.alpha = alpha;
    const View view = small.merge(base);
    if (said.empty()) {
      read(*view.reader, "model.q.weight");
    } else {
      EXPECT_THAT(error_of([&] { read(*view.reader, "model.q.weight"); }).message(),
                  HasSubstr(said));
    }
  }
}

TEST(MergedAdapter, ShapesSayWhichWayAWeightIsStored) {
  FakeReader base = base_with("model.q.weight", {3, 2});
  EXPECT_THAT(read(*Small().merge(base).reader, "model.q.weight"),
              ElementsAre(2, 20, 4, 40, 6, 60));
}

TEST(MergedAdapter, ModulesOfAnotherModelAreNamed) {
  FakeReader base = base_with("model.k.weight", {2, 3});
  Small small;
  small.adapter.config.base_model = "org/other";
  const CheckpointError error = small.refusal(base);
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("it was trained for 'org/other'"),
                    HasSubstr("'model.q.weight': the base model has no such tensor")));
}

TEST(MergedAdapter, AnotherShapeIsAnErrorWithBothShapes) {
  FakeReader base = base_with("model.q.weight", {4, 3});
  EXPECT_THAT(
      Small().refusal(base).message(),
      HasSubstr("'model.q.weight': the base model has the shape (4, 3), but lora_B × lora_A "
                "has (2, 3) ((2, 1) × (1, 3))"));
}

TEST(MergedAdapter, ARankThatTheConfigurationContradictsIsAnError) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  Small small;
  small.adapter.config.rank = 8;
  EXPECT_THAT(small.refusal(base).message(),
              HasSubstr("lora_A has the rank 1 and lora_B 1, but adapter_config.json says 8"));
}

TEST(MergedAdapter, WholeTensorsTakeTheTypeOfTheBase) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  base.tensor<std::uint16_t>("score.weight", DType::kBFloat16, {2}, {0, 0});
  Small small;
  small.adapter.whole = {{"score.weight", 2}};
  const View view = small.merge(base);
  EXPECT_EQ(view.reader->metadata().tensors[1].properties.dtype, DType::kBFloat16);
  EXPECT_THAT(messages_of(view.findings),
              Contains(HasSubstr("taken from the adapter as a whole: 1 tensor, 'score.weight'")));
}

TEST(MergedAdapter, NewTensorsNeedAModuleThatWasTrainedAsAWhole) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  Small small;
  small.adapter.whole = {{"score.weight", 2}};
  EXPECT_THAT(small.refusal(base).message(),
              HasSubstr("'score.weight': the base model has no such tensor"));
  FakeReader again = base_with("model.q.weight", {2, 3});
  Small saved;
  saved.adapter.whole = {{"score.weight", 2}};
  saved.adapter.config.modules_to_save = {"score"};
  EXPECT_THAT(read(*saved.merge(again).reader, "score.weight"), ElementsAre(5, 6));
}

TEST(MergedAdapter, AHeadOfItsOwnDoesNotFitAModelWithTiedEmbeddings) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  Small small;
  small.adapter.whole = {{"lm_head.weight", 2}};
  small.adapter.config.modules_to_save = {"lm_head"};
  EXPECT_THAT(small.refusal(base).message(), HasSubstr("tie_word_embeddings"));
}

TEST(MergedAdapter, AWholeTensorOfAnotherShapeIsAnErrorWithBothShapes) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  base.tensor<float>("score.weight", DType::kFloat32, {1}, {0});
  Small small;
  small.adapter.whole = {{"score.weight", 2}};
  EXPECT_THAT(small.refusal(base).message(),
              HasSubstr("'score.weight': the base model has the shape (1,), the adapter (2,)"));
}

TEST(MergedAdapter, ModulesThatTheConfigurationNamesMustBeThere) {
  FakeReader base = base_with("model.q.weight", {2, 3});
  base.tensor<float>("model.k.weight", DType::kFloat32, {1}, {0});
  Small small;
  small.adapter.config.target_modules.names = {"q", "k", "fc1"};  // the model also lacks fc1
  const CheckpointError error = small.refusal(base);
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.message(), HasSubstr("'k', such as 'model.k.weight'"));
}

TEST(MergedAdapter, ModulesThatTheConfigurationNamesMustBeThereInAllLayers) {
  const auto expression = [](const std::string& pattern) {
    const RenameRule rule{.from = "^(?:" + pattern + ")$", .to = ""};
    return ModuleSet{.expression = KeyRenamer(std::span(&rule, 1))};
  };
  const std::vector<std::string> all{"model.layers.0.a.q", "model.layers.0.a.k",
                                     "model.layers.1.a.q", "model.layers.1.a.k"};
  struct Case {
    std::vector<std::string> base, adapter;
    ModuleSet targets, excluded;
    std::string missing;  // empty: merged
  };
  for (const auto& [base_modules, modules, targets, excluded, missing] : std::vector<Case>{
           {all, all, {{"q", "k"}}, {}, ""},
           {all, {all[0], all[2]}, {{"q"}}, {}, ""},
           {all, {all[0], all[1], all[2]}, {{"q", "k"}}, {}, "model.layers.1.a.k.weight"},
           {all, {all[0], all[1]}, {{"a.q", "a.k"}}, {}, "model.layers.1.a.q.weight"},
           {all, {all[0]}, {{"q", "k"}}, {}, "model.layers.0.a.k.weight"},
           {all, {all[0]}, {{"q"}}, {{"layers.1.a.q"}}, ""},
           {all, {all[0]}, expression(".*[qk]"), {}, "model.layers.0.a.k.weight"},
           {all, {all[0], all[1]}, expression(".*layers.0.*[qk]"), {}, ""},
           {all, {all[0], all[2]}, expression(".*[qk]"), expression(".*k"), ""},
           {all, {all[0]}, {}, {}, ""},  // not known
           // what transformers does not load, or the adapter's model did not have
           {{all[0], "model.layers.1.a.q", "model.layers.1.eh_proj"}, {all[0]}, {{"q"}}, {}, ""},
           {{all[0], "mtp.layers.0.a.q"}, {all[0]}, {{"q"}}, {}, ""},
           {{all[0], "visual.blocks.0.a.q"}, {all[0]}, {{"q"}}, {}, ""},
       }) {
    FakeReader base;
    for (const std::string& module : base_modules)
      base.tensor<float>(module + ".weight", DType::kFloat32, {2, 3}, {0, 0, 0, 0, 0, 0});
    Small small;
    small.adapter.modules.clear();
    for (const std::string& module : modules)
      small.adapter.modules.push_back({.path = module, .a = 0, .b = 1});
    small.adapter.config.target_modules = targets;
    small.adapter.config.exclude_modules = excluded;
    if (missing.empty()) {
      EXPECT_NO_THROW(small.merge(base));
      continue;
    }
    const CheckpointError error = small.refusal(base);
    EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
    EXPECT_THAT(error.message(), HasSubstr("\n  '" + missing + "'"));
  }
}

TEST(MergedAdapter, QuantizedWeightsAreRefused) {
  FakeReader base;
  base.tensor<std::uint8_t>("model.q.weight", DType::kFloat8E4M3FN, {2, 3}, {0, 0, 0, 0, 0, 0});
  EXPECT_THAT(Small().refusal(base).message(), HasSubstr("dequantize it first"));
}

TEST(MergedAdapter, SaysWhatWasRoundedAndWhatHadNoEffect) {
  FakeReader base;
  base.tensor<std::uint16_t>("model.q.weight", DType::kBFloat16, {2, 3}, {0, 0, 0, 0, 0, 0});
  Small small;
  small.adapter.config.unknown = {"novelty"};
  const View view = small.merge(base);
  ASSERT_EQ(view.findings.size(), 3U);
  EXPECT_EQ(view.findings[0].code, FindingCode::kAdapterMerged);
  EXPECT_THAT(view.findings[0].keys, ElementsAre("model.q.weight"));
  EXPECT_EQ(view.findings[1].code, FindingCode::kValuesRounded);
  EXPECT_THAT(view.findings[2].message, HasSubstr("'novelty'"));

  FakeReader wide;
  wide.tensor<double>("model.q.weight", DType::kFloat64, {2, 3}, {0, 0, 0, 0, 0, 0});
  const View of_wide = Small().merge(wide);
  ASSERT_EQ(of_wide.findings.size(), 2U);
  EXPECT_EQ(of_wide.findings[1].code, FindingCode::kValuesRounded);
  EXPECT_THAT(of_wide.findings[1].message, HasSubstr("float64"));
  EXPECT_THAT(of_wide.findings[1].keys, ElementsAre("model.q.weight"));
}

}  // namespace
}  // namespace dckpt::merged_adapter_test
