#include "dist_checkpointing/open/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "operations/convert/convert.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/posix.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/code_of.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::open_test {
namespace {

namespace fs = std::filesystem;
using testing::golden;

constexpr const char* kSynthetic = "mcore-0.14-synthetic";

TEST(Open, FindsTheCheckpointOfARoot) {
  const TempDir root;
  for (const char* const name : {"iter_0000010", "iter_0000020", "release"})
    fs::copy(golden(kSynthetic), root / name, fs::copy_options::recursive);
  std::ofstream(root / kTrackerFile) << "20";
  EXPECT_EQ(resolve_checkpoint(root.path()), root / "iter_0000020");
  EXPECT_EQ(resolve_checkpoint(root.path(), {.iteration = 10}), root / "iter_0000010");
  EXPECT_EQ(resolve_checkpoint(root.path(), {.iteration = IterationName::release()}),
            root / "release");
  EXPECT_EQ(resolve_checkpoint("file://" + root.path().string()), root / "iter_0000020");
  EXPECT_EQ(code_of([&] { (void)resolve_checkpoint(root.path(), {.iteration = 30}); }),
            "incomplete");
}

/// Registers a strategy of two versions, each with an option of its own. Returns which one opened
/// last.
std::shared_ptr<int> register_two_versions() {
  const auto opened = std::make_shared<int>(0);
  for (const auto& [version, option] : {std::pair(1, "old"), std::pair(2, "recent")}) {
    register_strategy(LoadStrategyEntry{.name = "versions",
                                        .versions = {version},
                                        .about = "for this test",
                                        .check_options =
                                            [option = option](const StrategySpec& strategy) {
                                              if (!strategy.options.has(option))
                                                throw CheckpointError(ErrorCode::kInvalidArgument,
                                                                      "give it the option");
                                            },
                                        .open =
                                            [opened, version = version](const auto&, const auto&) {
                                              *opened = version;
                                              return std::make_unique<testing::FakeReader>();
                                            }});
  }
  return opened;
}

TEST(Open, TheEntryThatOpensChecksTheOptions) {
  const auto opened = register_two_versions();
  const TempDir checkpoint;
  std::ofstream(checkpoint / "metadata.json")
      << R"({"sharded_backend": "versions", "sharded_backend_version": 1})";
  const auto open = [&](const std::string& backend) {
    const Policy policy = Policy::from_text("version: 1\nload: {backend: " + backend + "}");
    return code_of(
        [&] { (void)open_checkpoint(checkpoint.path(), {.strategy = policy.load.strategy}); });
  };
  EXPECT_EQ(open("{name: versions, options: {recent: 1}}"), "invalid-argument");
  EXPECT_EQ(open("{name: versions, version: 2, options: {recent: 1}}"), "mismatch");
  EXPECT_EQ(open("{name: versions, version: 3}"), "unsupported");
  EXPECT_EQ(*opened, 0);
  EXPECT_EQ(open("{name: versions, options: {old: 1}}"), "no error");
  EXPECT_EQ(*opened, 1);
}

TEST(Open, RegisteredStrategiesGetSingleFilesAndWrapOthers) {
  const auto fake = [](const auto&, const auto&) {
    return std::make_unique<testing::FakeReader>();
  };
  register_strategy(LoadStrategyEntry{.name = "wrapper", .about = "for this test", .open = fake});
  register_strategy(LoadStrategyEntry{.name = "by-suffix",
                                      .about = "for this test",
                                      .matches =
                                          [](std::span<const FileInfo> entries) {
                                            return entries.size() == 1 &&
                                                   entries[0].name.ends_with(".mine");
                                          },
                                      .open = fake});
  const TempDir folder;
  std::ofstream(folder / "a.mine") << "text";
  std::ofstream(folder / "b.other") << "text";
  const auto format = [&](const fs::path& path, const char* strategy) {
    return open_checkpoint(path, {.strategy = {.name = strategy}})->info().format;
  };
  EXPECT_EQ(format(folder / "a.mine", "auto"), "fake");
  EXPECT_EQ(format(folder / "b.other", "by-suffix"), "fake");
  EXPECT_EQ(format(folder / "b.other", "wrapper"), "fake");
  EXPECT_EQ(format(golden(kSynthetic), "wrapper"), "fake");
  EXPECT_EQ(code_of([&] { format(folder / "b.other", "zarr"); }), "mismatch");
}

TEST(Open, FoldersOfOthersNameTheirCheckpoints) {
  const TempDir folder;
  fs::create_directories(folder / "run/context");
  fs::copy(golden(kSynthetic), folder / "run/weights", fs::copy_options::recursive);
  try {
    (void)open_checkpoint(folder / "run");
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("a folder of NeMo 2, around 'weights'; name '"));
  }
}

TEST(Open, AVersionOrOptionsNeedTheNameOfAStrategy) {
  const StrategySpec unnamed{.name = std::string(kAutoStrategy), .version = 2};
  const TempDir scratch;
  EXPECT_EQ(code_of([&] { (void)open_checkpoint(golden(kSynthetic), {.strategy = unnamed}); }),
            "invalid-argument");
  EXPECT_EQ(code_of([&] {
              convert(golden(kSynthetic), scratch / "x", {.source = {.strategy = unnamed}});
            }),
            "invalid-argument");
}

TEST(Open, AnIterationOfASingleFileIsRefused) {
  const TempDir scratch;
  std::ofstream(scratch / "model.pt") << "x";
  EXPECT_EQ(code_of([&] { (void)open_checkpoint(scratch / "model.pt", {.iteration = 10}); }),
            "invalid-argument");
}

TEST(Open, NoPathWithASchemeBecomesALocalFolder) {
  const fs::path url = "s3://bucket/run";
  StateDict state;
  state["iteration"] = 1;
  EXPECT_EQ(code_of([&] { (void)open_checkpoint(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { posix_storage(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { (void)list_iterations(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { save(state, url); }), "unsupported");
  EXPECT_EQ(code_of([&] { load(state, url); }), "unsupported");
  EXPECT_EQ(code_of([&] { (void)load_common_state(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { convert(golden(kSynthetic), url); }), "unsupported");
  EXPECT_EQ(code_of([&] { convert(url, "x"); }), "unsupported");
  EXPECT_EQ(code_of([&] { remove_sharded_tensors(url, "optimizer"); }), "unsupported");
  EXPECT_EQ(code_of([&] { Policy::from_file("s3://bucket/run.yaml"); }), "unsupported");
  EXPECT_EQ(code_of([&] {
              run_ranks(1, [&](Communicator& comm) { Checkpointer(url, {}, comm).save(state, 1); });
            }),
            "unsupported");
  EXPECT_FALSE(fs::exists("s3:"));
}

TEST(Open, ATargetWithTooLongANameIsWrongUsageBeforeAnythingIsRead) {
  const TempDir scratch;
  const std::string longest(140, 'n');
  EXPECT_EQ(code_of([&] { convert("/no/such/source", scratch / (longest + "n")); }),
            "invalid-argument");
  convert(golden(kSynthetic), scratch / longest);
  EXPECT_TRUE(fs::exists(scratch / longest / "metadata.json"));
}

}  // namespace
}  // namespace dckpt::open_test
