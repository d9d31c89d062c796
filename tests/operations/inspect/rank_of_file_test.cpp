#include "operations/inspect/rank_of_file.h"

#include <gtest/gtest.h>

namespace dckpt::rank_of_file_test {
namespace {

TEST(RankOfFile, ReadsTheNamesThatDcpAndMegatronGive) {
  EXPECT_EQ(rank_of_file("__12_0.distcp"), 12);
  EXPECT_EQ(rank_of_file("optimizer__3_1.distcp"), 3);
  EXPECT_EQ(rank_of_file("my__odd__prefix__4_0.distcp"), 4);
  EXPECT_EQ(rank_of_file("model.safetensors"), std::nullopt);
  EXPECT_EQ(rank_of_file("__x_0.distcp"), std::nullopt);
  EXPECT_EQ(rank_of_file("__99999999999999999999_0.distcp"), std::nullopt);
}

}  // namespace
}  // namespace dckpt::rank_of_file_test
