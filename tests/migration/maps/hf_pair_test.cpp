// Pairs of one model in the layouts of transformers and of Megatron, written by independent
// scripts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/maps/key_map.h"
#include "mapping/base/format.h"
#include "migration/maps/mapped_reader.h"
#include "strategies/storage/memory.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::hf_pair_test {
namespace {

using testing::bytes_of;
using testing::contents_of;
using testing::error_of;
using testing::hugging_face_of;
using ::testing::IsSupersetOf;
using testing::json_of;
using testing::megatron_of;
using testing::object_keys;

/// One model in transformers' and in Megatron's layout.
class HfPair : public ::testing::TestWithParam<const char*> {
 protected:
  std::string layout() const { return "layout=" + pair().at("layout").as_str(); }

  /// Returns whether the model has layers of both kinds, which have no keys in common.
  bool has_dense_layers_and_others() const {
    const Value numbers = pair().at("numbers");
    const Value* const dense = numbers.find("dense_layers");
    return layout() == "layout=non-homogeneous" || (dense != nullptr && dense->is_int());
  }

 private:
  static Value pair() { return json_of(testing::hf_pair(GetParam()) / "pair.json"); }
};
INSTANTIATE_TEST_SUITE_P(Families, HfPair,
                         ::testing::Values("qwen2", "qwen3", "mixtral", "deepseek_v3", "gpt2",
                                           "gemma2", "gemma3", "phi3", "glm4", "nemotron",
                                           "starcoder2", "olmo2", "olmoe", "exaone4", "gpt_oss",
                                           "nemotron_h", "qwen3_next", "glm4_moe", "minimax_m2",
                                           "gpt_neox", "glm4_moe_lite", "llama4", "ernie4_5",
                                           "ernie4_5_moe", "llama_nemotron", "qwen2_5_vl",
                                           "qwen3_vl"),
                         [](const auto& pair) { return std::string(pair.param); });

TEST_P(HfPair, MegatronBecomesWhatTransformersWrote) {
  const auto mapped = mapped_reader(megatron_of(GetParam()), {GetParam(), {"vocab_size=100"}});
  EXPECT_EQ(contents_of(*mapped), contents_of(*hugging_face_of(GetParam())));
  EXPECT_TRUE(mapped->metadata().objects.empty());
  EXPECT_TRUE(mapped->common_state().is_none());
}

TEST_P(HfPair, HuggingFaceBecomesWhatMegatronWrote) {
  const auto mapped = mapped_reader(hugging_face_of(GetParam()), {"auto", {layout()}});
  const auto megatron = megatron_of(GetParam());
  EXPECT_EQ(contents_of(*mapped), contents_of(*megatron));
  EXPECT_THAT(object_keys(*mapped), IsSupersetOf(object_keys(*megatron)));
  EXPECT_EQ(mapped->object(0), Value());
  // The way back needs no numbers but those that the conversion wrote itself.
  const auto back = mapped_reader(mapped_reader(hugging_face_of(GetParam()), {"auto", {layout()}}),
                                  {GetParam(), {}});
  EXPECT_EQ(contents_of(*back), contents_of(*hugging_face_of(GetParam())));
}

TEST_P(HfPair, EveryLayoutHoldsTheSameModel) {
  for (const auto& [layout, text] : kMegatronLayoutNames) {
    const std::string name(text);
    if (layout == MegatronLayout::kHomogeneous && has_dense_layers_and_others()) continue;
    const auto made = [&] {
      return mapped_reader(megatron_of(GetParam()),
                           {GetParam(), {"keys=megatron", "layout=" + name}});
    };
    const auto again = mapped_reader(made(), {GetParam(), {"keys=megatron", this->layout()}});
    EXPECT_EQ(contents_of(*again), contents_of(*megatron_of(GetParam()))) << name;
    EXPECT_EQ(object_keys(*again).size(), object_keys(*megatron_of(GetParam())).size());
    EXPECT_EQ(contents_of(*mapped_reader(made(), {GetParam(), {"vocab_size=100"}})),
              contents_of(*hugging_face_of(GetParam())))
        << name;
  }
}

TEST_P(HfPair, ThroughTheMapAndBackNothingChanges) {
  const RoundTrip megatron =
      round_trip([&] { return megatron_of(GetParam()); }, {GetParam(), {"vocab_size=100"}});
  EXPECT_EQ(contents_of(*megatron.after), contents_of(*megatron.before));
  const RoundTrip hf = round_trip([&] { return hugging_face_of(GetParam()); }, {"auto", {}});
  EXPECT_EQ(contents_of(*hf.after), contents_of(*hf.before));
  EXPECT_EQ(contents_of(*hf.before), contents_of(*hugging_face_of(GetParam())));
}

/// Returns a folder with a pair's config.json in which texts are replaced.
std::shared_ptr<Storage> configuration(
    const std::string& family, const std::vector<std::pair<std::string, std::string>>& changes) {
  std::string config = bytes_of(testing::hf_pair(family) / "hf/config.json");
  for (const auto& [was, text] : changes) config.replace(config.find(was), was.size(), text);
  auto folder = memory_storage();
  const auto file = folder->create("config.json");
  file->append(as_bytes(config));
  file->close();
  return folder;
}

TEST_P(HfPair, AConfigurationOfAnotherSizeIsRefused) {
  Value config = json_of(testing::hf_pair(GetParam()) / "hf/config.json");
  if (config.contains("moe_shared_expert_intermediate_size"))
    config.mutable_dict().erase("n_shared_experts");  // which transformers ignores there
  for (const char* const name :
       {"hidden_size", "n_embd", "intermediate_size", "intermediate_size_mlp", "num_hidden_layers",
        "n_layer", "moe_intermediate_size", "n_shared_experts", "n_routed_experts",
        "num_local_experts", "num_experts", "q_lora_rank", "kv_lora_rank", "v_head_dim"}) {
    const Value* const size = config.find(name);
    if (size == nullptr || !size->is_int()) continue;
    const auto text = [&](std::int64_t value) { return str_format("\"{}\": {},", name, value); };
    const auto other =
        configuration(GetParam(), {{text(size->as_int()), text(size->as_int() * 2)}});
    const auto code = [&](std::unique_ptr<CheckpointReader> source) {
      return error_of([&] {
               mapped_reader(std::move(source), {GetParam(), {}}, nullptr,
                             {.model_files = other.get()});
             })
          .code();
    };
    EXPECT_EQ(code(hugging_face_of(GetParam())), ErrorCode::kMismatch) << name;
    EXPECT_EQ(code(megatron_of(GetParam())), ErrorCode::kMismatch) << name;
  }
}

TEST(HfPairs, KimiK2HasTheMapOfDeepSeekV3) {
  for (const char* const architecture : {"DeepseekV3ForCausalLM", "KimiK2ForCausalLM"}) {
    const auto kimi = configuration("deepseek_v3", {{"DeepseekV3ForCausalLM", architecture},
                                                    {R"("deepseek_v3")", R"("kimi_k2")"}});
    const auto megatron =
        mapped_reader(hugging_face_of("deepseek_v3"), {"auto", {"layout=non-homogeneous"}}, nullptr,
                      {.model_files = kimi.get()});
    EXPECT_EQ(contents_of(*megatron), contents_of(*megatron_of("deepseek_v3")));
    const auto back = mapped_reader(megatron_of("deepseek_v3"), {"auto", {}}, nullptr,
                                    {.model_files = kimi.get()});
    EXPECT_EQ(contents_of(*back), contents_of(*hugging_face_of("deepseek_v3")));
  }
}

}  // namespace
}  // namespace dckpt::hf_pair_test
