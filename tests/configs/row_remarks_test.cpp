#include "configs/maps/row_remarks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dckpt::row_remarks_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> remarks_of(const std::string& yaml) {
  std::vector<std::string> lines;
  for (const MapRemark& remark :
       map_remarks(KeyMap::from_text("version: 1\nfamily: mine\n" + yaml)))
    lines.push_back(std::to_string(remark.place.place.line) + " " +
                    std::string(name_of(kFindingCodeNames, remark.finding.code)) + " " +
                    remark.finding.message);
  return lines;
}

TEST(RowRemarks, ShippedMapsNeedNone) {
  for (const ShippedPolicy& shipped : shipped_maps()) {
    const KeyMap map = KeyMap::from_text(shipped.yaml, std::string(shipped.name) + ".yaml");
    for (const MapRemark& remark : map_remarks(map))
      ADD_FAILURE() << shipped.name << ": " << remark.finding.message;
  }
}

TEST(RowRemarks, NameTheNearestKey) {
  EXPECT_THAT(remarks_of(R"(tensors:
  - {megatron: "decoder.final_layernorm.weight", hf: a}
  - {megatron: "decoder.layers.{l}.mlp.linear_f1.weight", hf: "{l}.b"}
  - {megatron: ["decoder.layers.{l}.mixer.in_proj.weight.z", "decoder.layers.{l}.mixer.in_proj.weight.t"], hf: "{l}.c", transform: {split_rows: 2}}
)"),
              ElementsAre(HasSubstr("5 keys-unknown no module of Megatron-Core that is known has "
                                    "'decoder.layers.{l}.mlp.linear_f1.weight' (did you mean "
                                    "'decoder.layers.{l}.mlp.linear_fc1.weight'?)"),
                          HasSubstr("6 keys-unknown no module of Megatron-Core that is known has "
                                    "'decoder.layers.{l}.mixer.in_proj.weight.t'")));
}

TEST(RowRemarks, TowersHaveKeysOfTheirOwn) {
  EXPECT_THAT(remarks_of(R"(towers: {keys: ["decoder.vision.", "visual."]}
tensors:
  - {megatron: "decoder.vision.weight", hf: "visual.weight"}
)"),
              IsEmpty());
}

TEST(RowRemarks, TellOfAnOrderOfHeadsThatNothingStates) {
  const std::string numbers =
      "numbers: {num_attention_heads: {hf: n_head}, num_query_groups: {hf: n_group}}\n";
  const std::string row =
      "  - {megatron: \"decoder.layers.{l}.self_attention.linear_qkv.weight\", hf: \"{l}.qkv\"";
  EXPECT_THAT(remarks_of(numbers + "tensors:\n" + row + "}\n"),
              ElementsAre(HasSubstr("order-assumed 'decoder.layers.{l}.self_attention.linear_qkv."
                                    "weight' takes query, key and value")));
  EXPECT_THAT(remarks_of(numbers + "tensors:\n" + row + ", transform: qkv_grouped}\n"), IsEmpty());
  EXPECT_THAT(
      remarks_of(numbers + "tensors:\n" + row + ", transform: [split_rows: 3, qkv_interleave]}\n"),
      IsEmpty());
}

TEST(RowRemarks, TellOfSidesWithTheSameKeys) {
  const std::string numbers = "towers: {keys: [\"a.\", \"layers.\", \"model.\"]}\ntensors:\n";
  const auto row = [](const std::string& megatron, const std::string& hf,
                      const std::string& more = "") {
    return "  - {megatron: \"" + megatron + "\", hf: \"" + hf + "\"" + more + "}\n";
  };
  const std::string turned = ", transform: transpose";
  const std::string same = row("a.{l}.w", "a.{l}.w", turned);
  struct Case {
    std::string rows;
    bool warns;
  };
  for (const auto& [rows, warns] : std::vector<Case>{
           {same, true},
           {row("a.{l}.w", "a.{l}.w", ", add: 1"), true},
           {row("a.{l}.w", "a.{l}.w", ", cast: {hf: float16}"), true},
           {row("layers.{l}.w", "model.layers.{l}.w", turned), true},
           {row("layers.{l}.w", "model.layers.{l}.w"), true},  // whose prefix is it?
           {row("a.{l}.w", "a.{l}.w"), false},
           {same + row("a.{l}.b", "a.{l}.bias"), false},
           {same + row("a.{l}.b", "a.{l}.bias", ", optional: true"), true},
           {same + row("a.{l}.b", "a.{l}.bias", ", aliases: [\"a.{l}.bias\"]"), true},
       }) {
    const std::vector<std::string> remarks = remarks_of(numbers + rows);
    EXPECT_EQ(remarks.size(), warns ? 1U : 0U) << rows;
    if (warns) {
      EXPECT_THAT(remarks.at(0), HasSubstr("5 order-assumed both sides of this map")) << rows;
    }
  }
}

}  // namespace
}  // namespace dckpt::row_remarks_test
