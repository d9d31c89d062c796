// The messages between the ranks of a run, and what happens if one rank disagrees or fails.

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/watched_communicator.h"

namespace dckpt::testing::checkpointer_ranks_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CheckpointerTest, ARootNeedsAName) {
  EXPECT_EQ(error_of([] { Checkpointer("", {}, *single_rank()); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(CheckpointerTest, RanksThatDisagreeAreNamedOnAllRanks) {
  saved({100});
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    const CheckpointError error = error_of(
        [&] { checkpointer.save(state_at(200, comm.rank(), 4), comm.rank() == 2 ? 201 : 200); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("cannot save: the ranks were given different iterations: "
                                        "'200' on ranks 0, 1, 3; '201' on rank 2"));
    checkpointer.save(state_at(200, comm.rank(), 4), 200);
  });
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    const CheckpointError error = error_of([&] {
      comm.rank() == 0 ? void(checkpointer.save(state_at(300, 0, 2), 300)) : checkpointer.claim();
    });
    EXPECT_THAT(error.what(), HasSubstr("the ranks were given different tasks: 'save' on rank 0; "
                                        "'claim the training root' on rank 1"));
  });
  run_ranks(2, [&](Communicator& comm) {
    Policy policy;
    if (comm.rank() == 1) policy.save.compat = Compat::kDcp;
    Checkpointer checkpointer(root_, policy, comm);
    EXPECT_THAT(
        error_of([&] { checkpointer.save({}, 300); }).what(),
        HasSubstr("different policies: 'compat: megatron' on rank 0; 'compat: dcp' on rank 1"));
    StateDict state = empty_state(comm.rank(), 2);
    EXPECT_THAT(error_of([&] { std::ignore = checkpointer.load_latest(state); }).what(),
                HasSubstr("different policies"));
  });
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(comm.rank() == 0 ? root_ : directory_ / "walk", {}, comm);
    EXPECT_THAT(error_of([&] { checkpointer.latest(); }).what(),
                AllOf(HasSubstr("different training roots"), HasSubstr("walk' on rank 1")));
  });
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, ARankThatCannotDescribeItsStateFailsAllAndTheNextSaveWorks) {
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save(state_at(100, comm.rank(), 4), 100);
    StateDict state = state_at(200, comm.rank(), 4);
    const Tensor three_rows = Tensor::zeros(DType::kInt64, {3, kColumns / 4});
    if (comm.rank() == 3)
      state["w"] =
          ShardedTensor::from_rank_offsets("w", three_rows, {{.axis = 1, .rank = 3, .count = 4}});
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(), HasSubstr("'w'"));
    EXPECT_EQ(checkpointer.latest(), 100U);
    checkpointer.save(state_at(300, comm.rank(), 4), 300);
  });
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000300", kTracker));
}

TEST_F(CheckpointerTest, TheSecondSaveExchangesFingerprintsInsteadOfPlans) {
  run_ranks(2, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [](std::uint64_t) {});
    Checkpointer checkpointer(root_, {}, watched);
    StateDict state = state_at(100, comm.rank(), 2);
    for (int layer = 0; layer < 200; ++layer) {
      const std::string key =
          "model.decoder.layers." + std::to_string(layer) + ".self_attention.linear_qkv.weight";
      state[key] = ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kInt64, {1, 1}),
                                                    {{.axis = 0, .rank = comm.rank(), .count = 2}});
    }
    checkpointer.save(state, 100);
    const std::uint64_t first = watched.gathered();
    checkpointer.save(state, 200);
    EXPECT_LT(3 * (watched.gathered() - first), first)
        << "what remains are the places in the files";
  });
}

TEST_F(CheckpointerTest, TheSecondLoadExchangesAFewBytesInsteadOfListsOfParts) {
  Policy policy;
  policy.load.parallel.enabled = true;
  run_ranks(2, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [](std::uint64_t) {});
    Checkpointer checkpointer(root_, policy, watched);
    const auto state_of_layers = [&](std::int64_t value) {
      StateDict state = Value::dict();
      for (int layer = 0; layer < 200; ++layer) {
        const std::string key =
            "model.decoder.layers." + std::to_string(layer) + ".self_attention.linear_qkv.weight";
        const Tensor data = Tensor::empty(DType::kInt64, {1, 1});
        std::memcpy(data.mutable_data(), &value, sizeof value);
        state[key] = ShardedTensor::from_rank_offsets(
            key, data, {{.axis = 0, .rank = comm.rank(), .count = 2}});
      }
      return state;
    };
    std::vector<std::uint64_t> sent;
    for (const std::uint64_t iteration : {100U, 200U})
      checkpointer.save(state_of_layers(static_cast<std::int64_t>(iteration)), iteration);
    for (const std::uint64_t iteration : {100U, 200U}) {
      const std::uint64_t before = watched.gathered();
      StateDict state = state_of_layers(0);
      checkpointer.load(state, iteration);
      sent.push_back(watched.gathered() - before);
      for (const auto& [key, value] : state.as_dict())
        EXPECT_EQ(load_le<std::int64_t>(value.as_tensor().bytes(), 0),
                  static_cast<std::int64_t>(iteration));
    }
    EXPECT_LT(3 * sent[1], sent[0]);
  });
}

/// Returns how many of the ranks fail if one of them throws at a moment of its save (see
/// WatchedCommunicator).
int failed_ranks(const fs::path& root, const Policy& policy, int ranks, std::uint64_t iteration,
                 int leaver, std::uint64_t moment) {
  std::atomic<int> failed = 0;
  run_ranks(ranks, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [&](std::uint64_t now) {
      if (now == moment && comm.rank() == leaver) throw std::runtime_error("the rank leaves");
    });
    Checkpointer checkpointer(root, policy, watched);
    try {
      checkpointer.save(state_at(iteration, comm.rank(), ranks), iteration);
    } catch (const std::exception&) {
      ++failed;
    }
  });
  return failed;
}

/// A rank leaves before or after each collective of a save in turn. All others throw too, and the
/// next job resumes from what was complete.
TEST_F(CheckpointerTest, WhereverARankLeavesASaveAllLeaveIt) {
  Policy policy{.retention = {.keep_last = 2}};
  policy.save.io.fsync = false;
  const Warnings silenced;
  for (const int ranks : {2, 4, 8}) {
    root_ = directory_ / ("run of " + std::to_string(ranks));
    std::uint64_t last = 100;
    job(
        ranks,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          checkpointer.save(state_at(100, comm.rank(), ranks), 100);
        },
        policy);
    int failed = ranks;
    std::uint64_t moment = 1;
    for (; failed > 1; ++moment) {  // at the last moment no rank waits for the one that leaves
      const int leaver = static_cast<int>(moment) % ranks;
      SCOPED_TRACE("rank " + std::to_string(leaver) + " of " + std::to_string(ranks) +
                   " leaves at moment " + std::to_string(moment));
      failed = failed_ranks(root_, policy, ranks, last + 100, leaver, moment);
      EXPECT_TRUE(failed == ranks || failed == 1) << failed << " ranks have failed";
      std::uint64_t next = 0;
      job(
          ranks,
          [&](Checkpointer& checkpointer, Communicator& comm) {
            StateDict state = empty_state(comm.rank(), ranks);
            const auto resumed = checkpointer.load_latest(state);
            ASSERT_TRUE(resumed && holds(state, resumed->iteration, comm.rank(), ranks));
            EXPECT_TRUE(resumed->iteration == last + 100 ||
                        (failed > 1 && resumed->iteration == last));
            checkpointer.save(state_at(resumed->iteration + 100, comm.rank(), ranks),
                              resumed->iteration + 100);
            if (comm.rank() == 0) next = resumed->iteration + 100;
          },
          policy);
      last = next;
    }
    EXPECT_GT(moment, 20U);
  }
}

TEST_F(CheckpointerTest, ARootThatCannotBeWrittenIsAnErrorOnAllRanks) {
  std::ofstream(directory_ / "file") << "in the way";
  root_ = directory_ / "file" / "run";
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    const std::vector<std::function<void()>> attempts = {
        [&] { checkpointer.claim(); },
        [&] { checkpointer.save(state_at(100, comm.rank(), 4), 100); }};
    for (const auto& attempt : attempts) {
      const CheckpointError error = error_of(attempt);
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("failed on rank 0 of 4"), HasSubstr("Not a directory")));
    }
  });
}

TEST_F(CheckpointerTest, ATrackerThatCannotBeWrittenIsAnErrorThatSaysTheSaveIsComplete) {
  fs::create_directories(root_ / kTracker / "not empty");
  const CheckpointError error = error_of([&] { saved({100}); });
  EXPECT_THAT(error.what(),
              HasSubstr("recording iteration 100, which is saved and complete, failed on rank 0"));
  fs::remove_all(root_ / kTracker);
  EXPECT_EQ(resumed(), 100);
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_ranks_test
