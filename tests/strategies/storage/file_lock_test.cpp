#include "strategies/storage/posix.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "tests/support/code_of.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::file_lock_test {
namespace {

using ::testing::HasSubstr;

class FileLocks : public ::testing::Test {
 protected:
  std::string code_of_locking() const {
    return code_of([&] { lock("the second"); });
  }
  std::unique_ptr<StorageLock> lock(const std::string& owner) const {
    return posix_storage(file_.parent_path())->lock(file_.filename(), owner);
  }
  TempDir directory_;
  std::filesystem::path file_ = directory_ / "lock";
};

TEST_F(FileLocks, HaveOneHolderWhoIsNamed) {
  std::unique_ptr<StorageLock> first = lock("the \n first");
  const CheckpointError error = testing::error_of([&] { lock("the second"); });
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_THAT(error.what(), HasSubstr("locked by the \\n first"));
  first.reset();
  EXPECT_EQ(code_of_locking(), "no error");
  EXPECT_EQ(code_of_locking(), "no error");
}

TEST_F(FileLocks, AreLostWithTheFileOrADirectoryAboveIt) {
  const std::filesystem::path root = directory_ / "root";
  std::filesystem::create_directory(root);
  file_ = root / "lock";
  auto held = lock("the first");
  EXPECT_TRUE(held->is_held());
  std::filesystem::rename(root, directory_ / "moved");
  EXPECT_FALSE(held->is_held());
  std::filesystem::create_directory(root);
  const auto second = lock("the second");
  EXPECT_TRUE(second->is_held());
  EXPECT_FALSE(held->is_held());
  std::filesystem::remove(file_);
  EXPECT_FALSE(second->is_held());
}

TEST_F(FileLocks, AreFreeWhenTheProcessOfTheHolderIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto held = lock("the child");
    [[maybe_unused]] const ssize_t told = write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(code_of_locking(), "aborted");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(code_of_locking(), "no error");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(FileLocks, RefuseWhatIsNoRegularFile) {
  std::filesystem::create_symlink("elsewhere", file_);
  EXPECT_EQ(code_of_locking(), "corrupt");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "elsewhere"));
  std::filesystem::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_EQ(code_of_locking(), "corrupt");
  std::filesystem::remove(file_);
  std::filesystem::create_directory(file_);
  EXPECT_EQ(code_of_locking(), "io");
}

TEST_F(FileLocks, NeedADirectoryToBeIn) {
  file_ = directory_ / "missing" / "lock";
  EXPECT_EQ(code_of_locking(), "io");
}

}  // namespace
}  // namespace dckpt::file_lock_test
