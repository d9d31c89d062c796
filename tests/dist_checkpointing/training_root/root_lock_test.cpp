#include "dist_checkpointing/training_root/root_lock.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "mapping/base/log.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing::root_lock_test {
namespace {

using ::testing::HasSubstr;

TEST(RootLock, AJobWaitsForAToolAndSaysSo) {
  const TempDir root;
  std::atomic<bool> said{false};
  set_log_sink([&](LogLevel, std::string_view message) {
    if (message.find("waiting for 'doctor ") == std::string_view::npos) return;
    said = true;
    said.notify_all();
  });
  std::unique_ptr<StorageLock> tool = lock_root(root.path(), lock_owner(kDoctor));
  EXPECT_EQ(error_of([&] { (void)lock_root(root.path(), lock_owner(kDoctor)); }).code(),
            ErrorCode::kAborted)
      << "a tool does not wait";
  const std::jthread ends([&] {
    said.wait(false);
    tool.reset();
  });
  EXPECT_TRUE(lock_root(root.path()));
  EXPECT_TRUE(said);
  set_log_sink({});
}

TEST(RootLock, AJobDoesNotWaitForAnotherJob) {
  const TempDir root;
  const auto job = lock_root(root.path());
  for (const std::string_view who : {kJob, kDoctor}) {
    const CheckpointError error = error_of([&] { (void)lock_root(root.path(), lock_owner(who)); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("another job has this training root"));
  }
}

}  // namespace
}  // namespace dckpt::testing::root_lock_test
