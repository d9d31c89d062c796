#include "migration/maps/sides/key_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "migration/maps/mapped_reader.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::key_prefix_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::contents_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hugging_face_of;
using testing::megatron_of;
using testing::Model;
using ::testing::Not;
using testing::object_keys;

/// Returns a pair's tensors, whose key and content are those of Hugging Face, under other keys.
std::map<std::string, std::string> renamed(
    const std::string& pair, const std::vector<std::pair<std::string, std::string>>& beginnings) {
  std::map<std::string, std::string> result;
  for (const auto& [key, content] : contents_of(*hugging_face_of(pair))) {
    const auto found = std::ranges::find_if(
        beginnings, [&, &key = key](const auto& old) { return key.starts_with(old.first); });
    result[found == beginnings.end() ? key : found->second + key.substr(found->first.size())] =
        content;
  }
  return result;
}

class Towers : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Towers, ::testing::Values("qwen2_5_vl", "qwen3_vl"),
                         [](const auto& pair) { return std::string(pair.param); });

TEST_P(Towers, OnlyTheTextIsMappedOnRequest) {
  MapReport report;
  const auto text = mapped_reader(hugging_face_of(GetParam()), {"auto", {"parts=text"}}, &report);
  std::map<std::string, std::string> expected;
  for (const auto& [key, content] : contents_of(*megatron_of(GetParam()))) {
    if (key.starts_with(kTextPrefix)) expected[key.substr(15)] = content;
  }
  EXPECT_EQ(contents_of(*text), expected);
  EXPECT_THAT(messages_of(report.findings),
              Contains(AllOf(HasSubstr("visual.blocks.{}.attn.qkv.bias'"), HasSubstr("dropped"),
                             HasSubstr("only the language model is wanted (parts=text)"))));
  for (const std::string& key : object_keys(*text)) EXPECT_THAT(key, Not(HasSubstr("vision")));
  const RoundTrip trip =
      round_trip([] { return hugging_face_of(GetParam()); }, {"auto", {"parts=text"}});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

TEST_P(Towers, ALanguageModelAloneIsConvertedOnRequest) {
  const auto text = [] {
    return mapped_reader(hugging_face_of(GetParam()), {"auto", {"parts=text"}});
  };
  EXPECT_THAT(error_of([&] {
                mapped_reader(text(), {GetParam(), {}});
              }).message(),
              HasSubstr("the checkpoint has the language model alone; --set parts=text converts"));
  for (const auto& [key, content] :
       contents_of(*mapped_reader(text(), {GetParam(), {"parts=text"}})))
    EXPECT_TRUE(key.starts_with("model.") || key == "lm_head.weight") << key;
}

TEST_P(Towers, AnotherNumberOfTheirLayersIsRefused) {
  EXPECT_THAT(error_of([] {
                mapped_reader(megatron_of(GetParam()), {GetParam(), {"vision_num_layers=5"}});
              }).message(),
              HasSubstr("of the vision tower, but vision_num_layers is 5 (as set)"));
}

TEST(KeyPrefix, FilesOfOtherReleasesHaveOtherPrefixes) {
  const std::string newer = "model.language_model.";
  const auto made = [](std::vector<std::string> set) {
    return mapped_reader(megatron_of("qwen2_5_vl"), {"qwen2_5_vl", std::move(set)});
  };
  const auto expected = renamed("qwen2_5_vl", {{"model.", newer}, {"visual.", "model.visual."}});
  EXPECT_EQ(contents_of(*made({"vocab_size=100", "prefix=" + newer})), expected);
  EXPECT_EQ(contents_of(*mapped_reader(made({"vocab_size=100", "prefix=" + newer}),
                                       {"qwen2_5_vl",
                                        {"num_attention_heads=4", "kv_channels=8",
                                         "num_query_groups=2", "vocab_size=100"}})),
            contents_of(*megatron_of("qwen2_5_vl")));
}

/// Counts of keys are checked before instances of rows are made of them.
TEST(KeyPrefix, TowersCountNoFurtherThanTheLimit) {
  Model model{.tensors = {{"vision_model.decoder.deepstack_merger_list.90000.patch_norm.bias", {1}},
                          {"vision_model.decoder.layers.10000.mlp.linear_fc1.bias", {1}}}};
  for (const char* const expected : {"90,001 values of a number in keys, more than 10,000",
                                     "10,001 layers of the vision tower, more than 10,000"}) {
    EXPECT_THAT(model.error({"qwen3_vl", {}}), HasSubstr(expected));
    model.tensors.erase(model.tensors.begin());
  }
}

}  // namespace
}  // namespace dckpt::key_prefix_test
