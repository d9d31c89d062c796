#include "dist_checkpointing/load/stored_keys.h"

#include <gmock/gmock.h>

#include "mapping/base/error.h"
#include "tests/support/expect_error.h"

namespace dckpt::stored_keys_test {
namespace {

using ::testing::ElementsAre;

Metadata metadata(const std::vector<std::string>& tensors,
                  const std::vector<std::string>& objects) {
  Metadata result;
  for (const std::string& key : tensors) result.tensors.emplace_back().key = key;
  for (const std::string& key : objects) result.objects.emplace_back().key = key;
  return result;
}

TEST(StoredKeys, FindsTensorsByKeyAndObjectsByUniqueKey) {
  const StoredKeys keys(metadata({"a", "b"}, {"rng/shard_0_2", "rng/shard_1_2", "step"}), {});
  EXPECT_EQ(keys.tensor("b"), 1U);
  EXPECT_EQ(keys.object("rng/shard_1_2"), 1U);
  EXPECT_FALSE(keys.tensor("step"));
  EXPECT_FALSE(keys.object("rng"));
  EXPECT_TRUE(keys.contains("step"));
  EXPECT_EQ(keys.size(), 5U);
  EXPECT_THAT(keys.names(), ElementsAre("a", "b", "rng/shard_0_2", "rng/shard_1_2", "step"));
  EXPECT_THAT(keys.keys(), ElementsAre("a", "b", "rng", "step")) << "as Megatron compares them";
}

TEST(StoredKeys, RulesRenameTheKeyOfAnObjectNotItsPlace) {
  const std::vector<RenameRule> rules = {{"^module\\.(.*)$", "\\1"}, {"shard", "piece"}};
  const StoredKeys keys(metadata({"module.shard"}, {"module.rng/shard_0_2"}), rules);
  EXPECT_THAT(keys.names(), ElementsAre("piece", "rng/shard_0_2"));
}

TEST(StoredKeys, RefusesRulesThatMakeTwoKeysOne) {
  const std::vector<RenameRule> rules = {{"[0-9]", "x"}};
  EXPECT_EQ(testing::error_of([&] {
              StoredKeys(metadata({"w1", "w2"}, {}), rules);
            }).message(),
            "the rules of load.rename give several stored keys the same name:\n  'w1' and 'w2' "
            "both become 'wx'");
}

}  // namespace
}  // namespace dckpt::stored_keys_test
