#include "dist_checkpointing/training_root/root_links.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "mapping/base/error.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/posix.h"
#include "tests/support/temp_dir.h"

namespace dckpt::root_links_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}
void link(const fs::path& target, const fs::path& name) {
  fs::create_directories(name.parent_path());
  fs::create_directory_symlink(target, name);
}

/// A way to remember iteration 10 of the root `run/root`, and why retention keeps it.
struct Mark {
  const char* what;
  void (*set)(const fs::path& run);
  const char* why;
};

const std::vector<Mark> kMarks{
    {"a link in the root", [](const fs::path& run) { link("iter_0000010", run / "root/best"); },
     "'best' leads to it"},
    {"an absolute link",
     [](const fs::path& run) { link(run / "root/iter_0000010", run / "root/LOWEST_VAL"); },
     "'LOWEST_VAL' leads to it"},
    {"a link in a folder of the root",
     [](const fs::path& run) { link("../iter_0000010", run / "root/best/loss"); },
     "'best/loss' leads to it"},
    {"a link deeper",
     [](const fs::path& run) { link("../../iter_0000010", run / "root/best/loss/1"); },
     "'best/loss/1' leads to it"},
    {"a link beside the root", [](const fs::path& run) { link("root/iter_0000010", run / "best"); },
     "'../best' leads to it"},
    {"a link into the checkpoint",
     [](const fs::path& run) { link("iter_0000010/model", run / "root/best"); },
     "'best' leads to it"},
    {"a link to a link",
     [](const fs::path& run) {
       link("iter_0000010", run / "root/best");
       link("root/best", run / "newest_best");
     },
     "'best', '../newest_best' lead to it"},
    {"a file that holds the name",
     [](const fs::path& run) { write(run / "root/LATEST", "iter_0000010\n"); },
     "'LATEST' names it"},
    {"a file with a path, in a folder",
     [](const fs::path& run) {
       write(run / "root/best/best.json", R"({"path": "/data/root/iter_0000010", "loss": 1.5})");
     },
     "'best/best.json' names it"},
    {"a list beside the root",
     [](const fs::path& run) { write(run / "keep.txt", "iter_0000010,iter_0000030"); },
     "'../keep.txt' names it"},
};

TEST(RootLinks, KeepWhatPeopleHaveMarked) {
  for (const Mark& mark : kMarks) {
    SCOPED_TRACE(mark.what);
    const TempDir run;
    for (const char* const name : {"iter_0000010", "iter_0000020"})
      fs::create_directories(run / "root" / name / "model");
    mark.set(run.path());
    const RootLinks links(run / "root");
    EXPECT_EQ(links.why_kept("iter_0000010"), mark.why);
    EXPECT_EQ(links.why_kept("iter_0000020"), std::nullopt);
  }
}

/// A storage with a folder that this user may not list, as lost+found of a mounted root.
class PartlyClosed final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  std::vector<FileInfo> list(const std::string& directory) const override {
    if (directory == "root/lost+found") throw CheckpointError(ErrorCode::kIo, "permission denied");
    return storage_->list(directory);
  }
};

TEST(RootLinks, AFolderThatCannotBeListedHidesNoOther) {
  const TempDir run;
  fs::create_directories(run / "root/iter_0000010");
  fs::create_directories(run / "root/lost+found");
  link("../iter_0000010", run / "root/zbest/loss");
  const RootLinks links(
      Location(std::make_shared<PartlyClosed>(posix_storage(run.path())), "root"));
  EXPECT_EQ(links.why_kept("iter_0000010"), "'zbest/loss' leads to it");
}

TEST(RootLinks, AreNotWhatNamesEverythingOrNothing) {
  const TempDir run;
  for (const char* const name : {"iter_0000010", "iter_0000020"})
    fs::create_directories(run / "root" / name);
  fs::create_directories(run / "other/iter_0000010");
  link("../other/iter_0000010", run / "root/best");
  link("nowhere", run / "root/gone");
  link("root", run / "same");
  write(run / "root/latest_checkpointed_iteration.txt", "iter_0000010");
  write(run / "root/.hidden", "iter_0000010");
  write(run / "root/number", "10");
  write(run / "root/part", "my_iter_0000010 iter_00000101");
  write(run / "root/train.log", std::string(2000, '.') + " saved iter_0000010");
  write(run / "root/iter_0000020/notes", "iter_0000010");
  const RootLinks links(run / "root");
  EXPECT_EQ(links.why_kept("iter_0000010"), std::nullopt);
  EXPECT_EQ(links.why_kept("best"), "it is a link");
}

}  // namespace
}  // namespace dckpt::root_links_test
