#include "dist_checkpointing/verify/data_files.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "dist_checkpointing/open/open.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::data_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class DataFilesOf : public ::testing::Test {
 protected:
  DataFilesOf() {
    fs::copy(testing::golden("mcore-0.14-flattened-tp2pp2dp2"), path_, fs::copy_options::recursive);
  }
  DataFiles check() const { return check_data_files(*open_checkpoint(path_)); }

  const TempDir directory_;
  const fs::path path_ = directory_ / "ckpt";
};

TEST_F(DataFilesOf, ASoundCheckpointAreAllThere) {
  const DataFiles files = check();
  EXPECT_TRUE(files.complete());
  EXPECT_GT(files.needed, 2u);
  EXPECT_EQ(describe(files), "");
}

TEST_F(DataFilesOf, ADamagedCheckpointAreTold) {
  fs::remove(path_ / "__2_0.distcp");
  const std::string all = std::to_string(check().needed);
  EXPECT_EQ(describe(check()), "'__2_0.distcp' is missing");
  fs::remove(path_ / "__3_0.distcp");
  fs::create_symlink("__2_0.distcp", path_ / "__3_0.distcp");
  fs::remove(path_ / "__1_0.distcp");
  fs::resize_file(path_ / "__0_0.distcp", 10);
  const DataFiles files = check();
  EXPECT_THAT(files.missing, ElementsAre("__1_0.distcp", "__2_0.distcp"));
  EXPECT_THAT(files.irregular, ElementsAre("__3_0.distcp"));
  ASSERT_EQ(files.truncated.size(), 1u);
  EXPECT_EQ(describe(files),
            "2 of " + all +
                " data files are missing: '__1_0.distcp', '__2_0.distcp'; '__3_0.distcp' is not a "
                "regular file; '__0_0.distcp' has 10 bytes of " +
                describe(files).substr(describe(files).rfind("bytes of ") + 9));
}

}  // namespace
}  // namespace dckpt::data_files_test
