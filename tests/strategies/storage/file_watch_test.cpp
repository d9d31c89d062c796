#include "strategies/storage/file_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "strategies/storage/posix.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::file_watch_test {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

class FileWatchTest : public ::testing::Test {
 protected:
  FileWatchTest() {
    fs::create_directory(directory_ / "d");
    write("d/a", "1234");
    write("d/other", "1234");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
  }

  TempDir directory_;
  std::shared_ptr<FileWatch> watch_ = std::make_shared<FileWatch>();
  std::shared_ptr<Storage> storage_ = watched_storage(posix_storage(directory_.path()), watch_);
};

TEST_F(FileWatchTest, AFileThatWasReadMustStayAsItWas) {
  struct Case {
    std::string name;
    std::function<void()> change;
    std::string error;  ///< empty: none
  };
  const fs::path file = directory_ / "d/a";
  for (const Case& one : {
           Case{"nothing", [] {}, ""},
           Case{"another file", [&] { write("d/other", "changed"); }, ""},
           Case{"a new file", [&] { write("d/new", "1"); }, ""},
           Case{"longer", [&] { write("d/a", "12345"); }, "was changed or replaced"},
           Case{"as long, at another time",
                [&] {
                  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(1));
                },
                "was changed or replaced"},
           Case{"replaced in one step",
                [&] {
                  std::this_thread::sleep_for(
                      std::chrono::milliseconds(50));  // the clock of files is coarse
                  write("new", "5678");
                  fs::rename(directory_ / "new", file);
                },
                "was changed or replaced"},
           Case{"removed", [&] { fs::remove(file); }, "was removed"},
       }) {
    SCOPED_TRACE(one.name);
    write("d/a", "1234");
    watch_ = std::make_shared<FileWatch>();
    storage_ = watched_storage(posix_storage(directory_.path()), watch_);
    (void)storage_->subtree("d")->open("a");
    one.change();
    (void)storage_->stat("d/a");
    if (one.error.empty()) {
      EXPECT_NO_THROW(watch_->require_unchanged("try again"));
      continue;
    }
    const CheckpointError error = error_of([&] { watch_->require_unchanged("try again"); });
    EXPECT_EQ(error.code(), ErrorCode::kAborted);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(one.error), HasSubstr("try again"), HasSubstr("d/a")));
    EXPECT_THROW(watch_->require_unchanged_since_last("try again"), CheckpointError);
    EXPECT_NO_THROW(watch_->require_unchanged_since_last("try again")) << "it was not read again";
  }
}

TEST_F(FileWatchTest, WhatWasNotedBeforeItWasReadCounts) {
  const auto noted = watch_->note(*storage_, "d/a");
  ASSERT_TRUE(noted.has_value());
  write("d/a", "12345");
  EXPECT_NO_THROW(watch_->require_unchanged("")) << "nobody has read it";
  EXPECT_EQ(watch_->note(*storage_, "d/a")->size, noted->size);
  (void)storage_->open("d/a");
  EXPECT_THROW(watch_->require_unchanged(""), CheckpointError);
}

}  // namespace
}  // namespace dckpt::file_watch_test
