#include "dist_checkpointing/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "dist_checkpointing/checkpointer.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/remove_sharded_tensors.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"
#include "strategies/storage/posix.h"
#include "tests/support/code_of.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
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
  EXPECT_EQ(code_of([&] { resolve_checkpoint(root.path(), {.iteration = 30}); }), "incomplete");
}

TEST(Open, AnIterationOfASingleFileIsRefused) {
  const TempDir scratch;
  std::ofstream(scratch / "model.pt") << "x";
  EXPECT_EQ(code_of([&] { open_checkpoint(scratch / "model.pt", {.iteration = 10}); }),
            "invalid-argument");
}

TEST(Open, NoPathWithASchemeBecomesALocalFolder) {
  const fs::path url = "s3://bucket/run";
  StateDict state;
  state["iteration"] = 1;
  EXPECT_EQ(code_of([&] { open_checkpoint(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { posix_storage(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { list_iterations(url); }), "unsupported");
  EXPECT_EQ(code_of([&] { save(state, url); }), "unsupported");
  EXPECT_EQ(code_of([&] { load(state, url); }), "unsupported");
  EXPECT_EQ(code_of([&] { load_common_state(url); }), "unsupported");
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
}  // namespace dckpt
