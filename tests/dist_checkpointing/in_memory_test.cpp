// The public functions on storages other than file systems.

#include <gmock/gmock.h>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/verify.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/code_of.h"

namespace dckpt::testing::in_memory_test {
namespace {

class InMemory : public ::testing::Test {
 protected:
  void save_both_ranks(const Location& checkpoint, const SaveOptions& options = {}) {
    run_ranks(2, [&](Communicator& comm) {
      save(state_at(100, comm.rank(), 2), checkpoint, options, comm);
    });
  }
  static bool is_loaded(const Location& checkpoint) {
    StateDict state = empty_state(0, 1);
    load(state, checkpoint);
    return holds(state, 100, 0, 1);
  }

  std::shared_ptr<Storage> memory_ = memory_storage("memory:");
  Location run_{memory_, "run"};
  TempDir directory_;
};

TEST_F(InMemory, WhatIsSavedIsLoadedInspectedAndRemoved) {
  save_both_ranks(run_ / "model", {.integrity = true});
  EXPECT_TRUE(is_loaded(run_ / "model"));
  const auto reader = open_checkpoint(run_ / "model");
  EXPECT_TRUE(verify(*reader, {.deep = true}).problems.empty());
  EXPECT_EQ(digest(*reader).tensors.size(), 1U);
  EXPECT_EQ(code_of([&] { save_both_ranks(run_ / "model"); }), "already-exists");
  EXPECT_EQ(remove_sharded_tensors(run_ / "model", "w").tensors, 1U);
  EXPECT_EQ(code_of([&] { is_loaded(run_ / "other"); }), "io");
}

TEST_F(InMemory, ConversionsGoFromAnyStorageToAnyOther) {
  save_both_ranks(directory_ / "on_disk");
  convert(directory_ / "on_disk", run_ / "copy", {.target = {.strategy = "dcp"}});
  convert(run_ / "copy", directory_ / "back", {.target = {.strategy = "torch_dist"}});
  EXPECT_TRUE(is_loaded(run_ / "copy"));
  EXPECT_TRUE(is_loaded(directory_ / "back"));
  EXPECT_TRUE(diff(*open_checkpoint(directory_ / "on_disk"), *open_checkpoint(directory_ / "back"))
                  .equal());
}

TEST_F(InMemory, ATrainingRunKeepsItsCheckpointsThereAloneAndResumes) {
  const auto job = [&](std::uint64_t iteration) {
    run_ranks(2, [&](Communicator& comm) {
      Checkpointer checkpointer(run_, {.retention = {.keep_last = 1}}, comm);
      StateDict state = empty_state(comm.rank(), 2);
      const auto resumed = checkpointer.load_latest(state);
      EXPECT_EQ(resumed ? resumed->iteration : 0, iteration - 100);
      checkpointer.save_async(state_at(iteration, comm.rank(), 2), iteration);
      checkpointer.wait();
      if (comm.rank() != 0) return;
      const auto alone = single_rank();
      EXPECT_EQ(code_of([&] { Checkpointer(run_, {}, *alone).claim(); }), "aborted");
    });
  };
  const Warnings nothing_to_resume_from;
  job(100);
  job(200);
  EXPECT_EQ(resolve_checkpoint(run_), run_ / "iter_0000200");
  EXPECT_EQ(list_iterations(run_), (std::vector<std::uint64_t>{100, 200}))
      << "what was resumed from stays";
}

TEST_F(InMemory, TheRootOfAStorageIsNoNameForANewCheckpoint) {
  EXPECT_EQ(code_of([&] { save_both_ranks(Location(memory_)); }), "invalid-argument");
}

}  // namespace
}  // namespace dckpt::testing::in_memory_test
