#include "tools/dckpt/pictures/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dckpt::tool::tree_test {
namespace {

using ::testing::ElementsAre;

TEST(Tree, BranchesGoOnWhereARowFollows) {
  const std::vector<std::size_t> depths = {0, 1, 2, 2, 1, 2, 0};
  EXPECT_THAT(branches(depths, true),
              ElementsAre("", "├─ ", "│  ├─ ", "│  └─ ", "└─ ", "   └─ ", ""));
  EXPECT_THAT(branches(depths, false),
              ElementsAre("", "|- ", "|  |- ", "|  `- ", "`- ", "   `- ", ""));
  EXPECT_THAT(branches({}, true), ElementsAre());
}

}  // namespace
}  // namespace dckpt::tool::tree_test
