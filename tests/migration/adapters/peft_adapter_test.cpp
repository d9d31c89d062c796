#include "migration/adapters/peft_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/storage/posix.h"
#include "tests/migration/adapters/adapter_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::peft_adapter_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, std::vector<int>>>;

class PeftAdapters : public ::testing::Test {
 protected:
  void config(const std::string& more = "") {
    testing::write_text(folder_ / "adapter_config.json", R"({"peft_type": "LORA")" + more + "}");
  }
  void weights(const Tensors& tensors) {
    testing::write_zeros(folder_ / "adapter_model.safetensors", tensors);
  }
  PeftAdapter open() const { return open_peft_adapter(posix_storage(folder_.path())); }
  CheckpointError refusal() const {
    return error_of([&] { open(); });
  }

  TempDir folder_;
};

TEST_F(PeftAdapters, TensorsAreSortedByModule) {
  config();
  weights({{"base_model.model.lm_head.weight", {1}},
           {"base_model.model.m.q.base_layer.bias", {1}},
           {"base_model.model.m.q.lora_A.weight", {1}},
           {"base_model.model.m.q.lora_B.bias", {1}},
           {"base_model.model.m.q.lora_B.weight", {1}},
           {"base_model.model.wte.lora_embedding_A", {1}},
           {"base_model.model.wte.lora_embedding_B", {1}}});
  const PeftAdapter adapter = open();
  ASSERT_EQ(adapter.modules.size(), 2U);
  EXPECT_EQ(adapter.modules[0].path, "m.q");
  EXPECT_EQ(adapter.modules[0].a, 2U);
  EXPECT_EQ(adapter.modules[0].b, 4U);
  EXPECT_EQ(adapter.modules[0].bias, 3U);
  EXPECT_FALSE(adapter.modules[0].embedding);
  EXPECT_TRUE(adapter.modules[1].embedding);
  ASSERT_EQ(adapter.whole.size(), 2U);
  EXPECT_EQ(adapter.whole[0].key, "lm_head.weight");
  EXPECT_EQ(adapter.whole[1].key, "m.q.bias");
  EXPECT_TRUE(holds_peft_adapter(adapter.reader->metadata()));
  EXPECT_FALSE(holds_peft_adapter({}));
}

TEST_F(PeftAdapters, LevelsOfAModuleOfExpertsAreItsParameters) {
  const std::string targets =
      R"(, "target_parameters": ["experts.down_proj", "experts.gate_up_proj"], "r": )";
  const std::string module = "base_model.model.m.experts.";
  const Tensors inner{{module + "base_layer.lora_A.weight", {8, 3}},
                      {module + "base_layer.lora_B.weight", {10, 8}}};
  Tensors both = inner;
  both.insert(both.end(), {{module + "lora_A.weight", {8, 5}}, {module + "lora_B.weight", {3, 8}}});
  config(targets + "2");
  weights(both);
  const PeftAdapter adapter = open();
  ASSERT_EQ(adapter.experts.size(), 2U);
  EXPECT_TRUE(adapter.modules.empty());
  EXPECT_EQ(adapter.experts[0].path(), "m.experts.gate_up_proj");
  EXPECT_EQ(adapter.experts[0].experts, 4);
  EXPECT_EQ(adapter.experts[0].in, 3);
  EXPECT_EQ(adapter.experts[0].out, 10);
  EXPECT_EQ(adapter.experts[1].path(), "m.experts.down_proj");
  for (const char* const rank : {"3", "0.5", "1e300"}) {
    config(targets + rank);
    EXPECT_THAT(refusal().message(), HasSubstr("expected (experts · ")) << rank;
  }
  config(targets + "2");
  weights(inner);
  EXPECT_THAT(refusal().message(), HasSubstr("'m.experts' has 1 level of LoRA for"));
  config(R"(, "target_parameters": ["experts.weight1"])");
  EXPECT_THAT(refusal().message(), HasSubstr("the adapter has nothing for 'experts.weight1'"));
}

TEST_F(PeftAdapters, FilesThatAreMissingAreNamed) {
  weights({});
  EXPECT_EQ(refusal().code(), ErrorCode::kIncomplete);
  EXPECT_THAT(refusal().message(), HasSubstr("adapter_config.json"));
  config();
  std::filesystem::remove(folder_ / "adapter_model.safetensors");
  EXPECT_EQ(refusal().code(), ErrorCode::kIncomplete);
  EXPECT_THAT(refusal().message(), HasSubstr("adapter_model.safetensors"));
}

TEST_F(PeftAdapters, PicklesAreRefused) {
  config();
  testing::write_text(folder_ / "adapter_model.bin", "a pickle");
  EXPECT_EQ(refusal().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refusal().message(),
              AllOf(HasSubstr("adapter_model.bin"), HasSubstr("save_pretrained")));
}

TEST_F(PeftAdapters, AnAdapterWithoutTensorsIsRefused) {
  config();
  weights({});
  EXPECT_THAT(refusal().message(), HasSubstr("the adapter holds no tensors"));
}

TEST_F(PeftAdapters, OtherTensorsAreRefusedByName) {
  config();
  weights({{"base_model.model.q.lora_magnitude_vector", {1}}, {"model.q.weight", {1}}});
  EXPECT_EQ(refusal().code(), ErrorCode::kMismatch);
  EXPECT_THAT(refusal().message(), AllOf(HasSubstr("'base_model.model.q.lora_magnitude_vector'"),
                                         HasSubstr("'model.q.weight'")));
}

TEST_F(PeftAdapters, AModuleNeedsBothOfItsMatrices) {
  config();
  weights({{"base_model.model.q.lora_A.weight", {1}}, {"base_model.model.k.lora_B.weight", {1}}});
  EXPECT_EQ(refusal().code(), ErrorCode::kIncomplete);
  EXPECT_THAT(refusal().message(),
              AllOf(HasSubstr("'q' lacks lora_B"), HasSubstr("'k' lacks lora_A")));
}

}  // namespace
}  // namespace dckpt::peft_adapter_test
