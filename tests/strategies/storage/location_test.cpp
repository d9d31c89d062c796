#include "strategies/storage/location.h"

#include <gmock/gmock.h>

#include <fstream>

#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/code_of.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temp_dir.h"

namespace dckpt::location_test {
namespace {

namespace fs = std::filesystem;

TEST(Location, IsMadeOfPathsAsTheyAreWritten) {
  const auto displayed = [](const Location& location) { return location.display(); };
  EXPECT_EQ(displayed("run/iter_1"), "run/iter_1");
  EXPECT_EQ(displayed(std::string("run")), "run");
  EXPECT_EQ(displayed(std::string_view("/run")), "/run");
  EXPECT_EQ(displayed(fs::path("a/b/") / ""), "a/b");
  EXPECT_EQ(displayed("a/b/./"), "a/b");
  EXPECT_EQ(displayed("file:///run/x"), "/run/x");
  EXPECT_EQ(displayed("/"), "/");
  EXPECT_EQ(code_of([&] { displayed(""); }), "invalid-argument");
  EXPECT_EQ(code_of([&] { displayed("run/" + std::string(256, 'a')); }), "invalid-argument");
}

TEST(Location, HasANameInItsStorage) {
  const Location location = "run/iter_1";
  EXPECT_EQ(location.name(), "iter_1");
  EXPECT_EQ(location.storage()->display_path(""), "run");
  EXPECT_EQ(Location("/").name(), "");
  EXPECT_EQ(Location(".").name(), fs::current_path().filename());
  EXPECT_EQ(Location(memory_storage("m:"), "a/b/c").name(), "c");
  EXPECT_EQ(Location(memory_storage("m:"), "a/b/c").display(), "m:a/b/c");
  EXPECT_EQ(code_of([] { Location(memory_storage(), "../a"); }), "corrupt");
  EXPECT_EQ(code_of([] { Location(nullptr, "a"); }), "invalid-argument");
}

TEST(Location, IsTheSameWhereverTheProcessStands) {
  EXPECT_EQ(Location("run/x"), fs::absolute("run/x"));
  EXPECT_EQ(Location("run/../x"), "x");
  EXPECT_FALSE(Location("run/x") == "run/y");
}

TEST(Location, FollowsLinksToDirectories) {
  const TempDir scratch;
  fs::create_directories(scratch / "disk" / "run" / "iter_1");
  std::ofstream(scratch / "disk" / "file") << "x";
  fs::create_symlink("disk/run", scratch / "run");
  fs::create_symlink("disk/file", scratch / "link");
  fs::create_symlink("nowhere", scratch / "dangling");
  const Location run = scratch / "run";
  EXPECT_TRUE(run.is_directory());
  EXPECT_TRUE((run / "iter_1").is_directory());
  EXPECT_EQ(run.directory()->list("").size(), 1U);
  EXPECT_EQ(Location(scratch / "link").stat()->size, 1U);
  EXPECT_FALSE(Location(scratch / "link").is_directory());
  EXPECT_FALSE(Location(scratch / "dangling").stat());
  EXPECT_FALSE((run / "iter_2").stat());
  EXPECT_FALSE(Location(scratch / "disk" / "file" / "below").stat());
}

TEST(Location, MakesItsDirectoryDurablyWhenSomethingIsCreatedInIt) {
  const auto disk = std::make_shared<SimulatedDisk>();
  const auto directory = Location(disk, "deep/run").directory();
  EXPECT_FALSE(disk->stat("deep"));
  directory->make_directory("iter_1");
  directory->sync_directory("");
  EXPECT_TRUE(disk->after({PowerCut::Kind::kLosesUnsynced})->stat("deep/run/iter_1"));
}

TEST(Location, OfARegisteredSchemeIsMadeByItsFactory) {
  const auto bucket = memory_storage("mem://bucket/");
  bucket->make_directory("run");
  register_scheme("mem", [&](std::string_view url) {
    return Location(bucket, std::string(url.substr(std::string_view("mem://bucket/").size())));
  });
  const Location run = "mem://bucket/run";
  EXPECT_TRUE(run.is_directory());
  EXPECT_EQ((run / "x").display(), "mem://bucket/run/x");
  EXPECT_EQ(code_of([] { Location("mems://bucket/run"); }), "unsupported");
  for (const char* const scheme : {"", "file", "1s", "a/b"}) {
    EXPECT_EQ(code_of([&] { register_scheme(scheme, [](auto) { return Location("x"); }); }),
              "invalid-argument")
        << scheme;
  }
  EXPECT_EQ(code_of([] { register_scheme("none", nullptr); }), "invalid-argument");
}

TEST(StorageLocks, ExcludeOtherHoldersWhereThereAreLocks) {
  for (const auto& storage : {memory_storage(), memory_storage()->subtree("below")}) {
    auto first = storage->lock("lock", "the first");
    EXPECT_EQ(code_of([&] { storage->lock("lock", "the second"); }), "aborted");
    storage->lock("another", "the second");
    first.reset();
    storage->lock("lock", "the second");
  }
}

TEST(StorageSpace, IsKnownOfFileSystemsOnly) {
  EXPECT_GT(Location("nowhere/yet/x").storage()->available_space().value(), 0U);
  EXPECT_EQ(memory_storage()->available_space(), std::nullopt);
}

}  // namespace
}  // namespace dckpt::location_test
