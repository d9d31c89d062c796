#include "dist_checkpointing/open/key_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/policy/rename.h"

namespace dckpt::key_groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

KeySet layers(const std::string& before, int count, const std::string& after) {
  KeySet keys;
  for (int i = 0; i < count; ++i) keys.insert(before + std::to_string(i) + after);
  return keys;
}

KeySet operator|(KeySet a, const KeySet& b) {
  a.insert(b.begin(), b.end());
  return a;
}

TEST(KeyGroups, NumbersAreWholeComponents) {
  EXPECT_EQ(without_numbers("layers.11.mlp.w2"), "layers.*.mlp.w2");
  EXPECT_EQ(without_numbers("0.a..1"), "*.a..*");
  EXPECT_EQ(without_numbers("rng/shard_0.3_1.8"), "rng/shard_*");
  EXPECT_EQ(without_numbers(""), "");
}

TEST(KeyGroups, ATableHasALinePerGroup) {
  EXPECT_EQ(table_of(layers("decoder.layers.", 12, ".w") | KeySet{"decoder.norm.7", "end"}), R"(
  'decoder.layers.*.w' (12 keys, e.g. 'decoder.layers.0.w')
  'decoder.norm.7'
  'end')");
}

TEST(KeyGroups, ATableSaysHowManyKeysItLeavesOut) {
  KeySet keys;
  for (std::size_t i = 0; i < kShownGroups + 5; ++i) keys.insert(std::string(i + 1, 'k'));
  EXPECT_TRUE(table_of(keys).ends_with("\n  … and 5 more"));
}

TEST(KeyGroups, UnknownKeysComeWithTheStoredOneTheyResemble) {
  const KeySet stored = layers("layers.", 4, ".mlp.linear_fc1.weight") |
                        layers("layers.", 4, ".attention.weight") | KeySet{"embedding.weight"};
  EXPECT_EQ(table_of_unknown(layers("layers.", 4, ".mlp.fc1.weight"), stored),
            "\n  'layers.*.mlp.fc1.weight' (4 keys, e.g. 'layers.0.mlp.fc1.weight'): did you mean "
            "'layers.0.mlp.linear_fc1.weight'?");
  EXPECT_EQ(table_of_unknown({"layers.9.mlp.fc1.weight"}, stored),
            "\n  'layers.9.mlp.fc1.weight': did you mean 'layers.0.mlp.linear_fc1.weight'?")
      << "there is no layer 9";
  EXPECT_EQ(table_of_unknown({"layers.4.attention.weight"}, stored),
            "\n  'layers.4.attention.weight': the checkpoint has 4 others, e.g. "
            "'layers.0.attention.weight'");
  EXPECT_EQ(table_of_unknown({"something.else"}, stored), "\n  'something.else'");
}

/// Returns the keys of a checkpoint as the rules rename them.
KeySet renamed(const KeySet& stored, const std::vector<RenameRule>& rules) {
  const KeyRenamer rename(rules);
  KeySet names;
  for (const std::string& key : stored) names.insert(rename(key));
  return names;
}

TEST(SuggestRename, FindsAPrefixThatIsTooMuchOrTooLittle) {
  const KeySet wanted = layers("layers.", 3, ".w") | KeySet{"final.w"};
  for (const std::string prefix : {"module.", "model (1).\\n.", "a.b.c."}) {
    KeySet stored;
    for (const std::string& key : wanted) stored.insert(prefix + key);
    EXPECT_EQ(renamed(stored, suggest_rename(wanted, stored)), wanted);
    EXPECT_EQ(renamed(wanted, suggest_rename(stored, wanted)), stored);
  }
  EXPECT_THAT(suggest_rename({"w"}, {"module.w"}),
              ElementsAre(RenameRule{"^module\\.(.*)$", "\\1"}));
}

/// torch.compile wraps each layer, or all that is below a prefix.
TEST(SuggestRename, FindsTheNamesOfWrappersInTheMiddleOfKeys) {
  const KeySet wanted = layers("layers.", 12, ".w") | KeySet{"optimizer.layers.0.w", "norm.w"};
  const KeySet compiled =
      layers("layers.", 12, "._orig_mod.w") | KeySet{"optimizer.layers.0._orig_mod.w", "norm.w"};
  EXPECT_EQ(renamed(compiled, suggest_rename(wanted, compiled)), wanted);
  EXPECT_EQ(renamed(wanted, suggest_rename(compiled, wanted)), compiled);
  EXPECT_THAT(suggest_rename({"a.w"}, {"a._fsdp_wrapped_module._orig_mod.w"}),
              ElementsAre(RenameRule{"\\b(_fsdp_wrapped_module|_orig_mod)\\.", ""}));
  const KeySet behind_prefix = layers("model.layers.", 2, "._orig_mod.w");
  EXPECT_EQ(renamed(behind_prefix, suggest_rename(layers("layers.", 2, ".w"), behind_prefix)),
            layers("layers.", 2, ".w"));
  EXPECT_THAT(suggest_rename({"a.w", "b.w"}, {"a._orig_mod.w"}), IsEmpty()) << "b is nowhere";
  EXPECT_THAT(suggest_rename({"norm.w"}, compiled), IsEmpty()) << "nothing to explain";
}

TEST(SuggestRename, NoRuleThatIsTooLongToBeUsed) {
  EXPECT_THAT(suggest_rename({"w"}, {std::string(kMaxRenamePattern, 'p') + ".w"}), IsEmpty());
}

TEST(SuggestRename, OnlyARuleThatExplainsAll) {
  EXPECT_THAT(suggest_rename({"a", "b"}, {"module.a"}), IsEmpty()) << "b is nowhere";
  EXPECT_THAT(suggest_rename({"a", "b"}, {"x.a", "y.b"}), IsEmpty());
  EXPECT_THAT(suggest_rename({"a"}, {"a"}), IsEmpty()) << "nothing to explain";
  EXPECT_THAT(suggest_rename({"a", "module.c"}, {"module.a", "module.c"}), IsEmpty())
      << "the rule would take away what is found";
  EXPECT_THAT(suggest_rename({"module.a", "c"}, {"a", "c"}), IsEmpty())
      << "the rule would rename c, too";
  EXPECT_THAT(suggest_rename({"a", "c"}, {"module.a", "c"}), Not(IsEmpty()));
}

}  // namespace
}  // namespace dckpt::key_groups_test
