#include "dist_checkpointing/load/key_groups.h"

#include <gtest/gtest.h>

#include "configs/rename.h"

namespace dckpt {
namespace {

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

/// The keys of a checkpoint, as a rule renames them.
KeySet renamed(const KeySet& stored, const RenameRule& rule) {
  const KeyRenamer rename(std::vector<RenameRule>{rule});
  KeySet names;
  for (const std::string& key : stored) names.insert(rename(key));
  return names;
}

TEST(SuggestRename, FindsAPrefixThatIsTooMuchOrTooLittle) {
  const KeySet wanted = layers("layers.", 3, ".w") | KeySet{"final.w"};
  for (const std::string prefix : {"module.", "model (1).\\n.", "a.b.c."}) {
    KeySet stored;
    for (const std::string& key : wanted) stored.insert(prefix + key);
    EXPECT_EQ(renamed(stored, suggest_rename(wanted, stored).value()), wanted);
    EXPECT_EQ(renamed(wanted, suggest_rename(stored, wanted).value()), stored);
  }
  EXPECT_EQ(suggest_rename({"w"}, {"module.w"}), (RenameRule{"^module\\.(.*)$", "\\1"}));
}

TEST(SuggestRename, NoRuleThatIsTooLongToBeUsed) {
  EXPECT_FALSE(suggest_rename({"w"}, {std::string(kMaxRenamePattern, 'p') + ".w"}));
}

TEST(SuggestRename, OnlyARuleThatExplainsAll) {
  EXPECT_FALSE(suggest_rename({"a", "b"}, {"module.a"})) << "b is nowhere";
  EXPECT_FALSE(suggest_rename({"a", "b"}, {"x.a", "y.b"}));
  EXPECT_FALSE(suggest_rename({"a"}, {"a"})) << "nothing to explain";
  EXPECT_FALSE(suggest_rename({"a", "module.c"}, {"module.a", "module.c"}))
      << "the rule would take away what is found";
  EXPECT_FALSE(suggest_rename({"module.a", "c"}, {"a", "c"})) << "the rule would rename c, too";
  EXPECT_TRUE(suggest_rename({"a", "c"}, {"module.a", "c"}));
}

}  // namespace
}  // namespace dckpt
