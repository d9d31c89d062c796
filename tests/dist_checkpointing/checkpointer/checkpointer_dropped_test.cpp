// A run whose state lacks what the checkpoint has is warned when it resumes, and does not lose it
// by saving.

#include <gmock/gmock.h>

#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::checkpointer_dropped_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kElements = 8;

/// Returns the model on every rank; the optimizer states are spread over the ranks, each wholly on
/// one.
StateDict model(int rank, int ranks) {
  StateDict state;
  state["w"] =
      ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {kElements / ranks}),
                                       {{.axis = 0, .rank = rank, .count = ranks}});
  return state;
}
StateDict with_optimizer(int rank, int ranks) {
  StateDict state = model(rank, ranks);
  for (int layer = 0; layer < 4; ++layer) {
    if (layer % ranks != rank) continue;
    const std::string key = "optimizer.exp_avg." + std::to_string(layer);
    state[key] = ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, {kElements}));
  }
  return state;
}

class Dropped : public TrainingRun {
 protected:
  void SetUp() override {
    job(2, [](Checkpointer& checkpointer, Communicator& comm) {
      checkpointer.save(with_optimizer(comm.rank(), 2), 100);
    });
  }
};

TEST_F(Dropped, TensorsAreNamedAtTheResumeAndNotLostByASave) {
  for (const bool background : {false, true}) {
    Policy policy;
    policy.save.async.enabled = background;
    const Warnings warnings;
    job(
        4,
        [](Checkpointer& checkpointer, Communicator& comm) {
          StateDict state = model(comm.rank(), 4);
          checkpointer.resume(state);
          for (int again = 0; again < 2; ++again) {
            const CheckpointError error = error_of([&] { checkpointer.save(state, 200).wait(); });
            EXPECT_EQ(error.code(), ErrorCode::kMismatch);
            EXPECT_THAT(error.what(), AllOf(HasSubstr("lacks 4 of the 5 tensors"),
                                            HasSubstr("'optimizer.exp_avg.*' (4 keys, e.g. "
                                                      "'optimizer.exp_avg.0'), 128 B"),
                                            HasSubstr("allow_dropped_keys: true")));
          }
        },
        policy);
    EXPECT_THAT(warnings.text(),
                AllOf(HasSubstr("4 of the 5 tensors of '"),
                      HasSubstr("'optimizer.exp_avg.*' (4 keys"), HasSubstr("128 B")));
    EXPECT_FALSE(fs::exists(root_ / "iter_0000200"));
    EXPECT_EQ(tracker(), "100");
  }
}

TEST_F(Dropped, TheCallOrThePolicyMayAllowIt) {
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = model(comm.rank(), 2);
    checkpointer.resume(state);
    checkpointer.save(state, 200, {.dropped_keys = true});
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 300); }).what(), HasSubstr("lacks 4 of"))
        << "the plan is cached, the permission is not";
    EXPECT_THAT(
        error_of([&] { checkpointer.save(state, 300, {.dropped_keys = comm.rank() == 0}); }).what(),
        HasSubstr("different tasks"));
  });
  set_tracker("100");
  job(2,
      [](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = model(comm.rank(), 2);
        checkpointer.resume(state);
        checkpointer.save(state, 300);
      },
      {.resume = {.allow_dropped_keys = true}});
}

TEST_F(Dropped, WhatOtherRanksHoldIsNotDroppedAndWhatAppearsBeforeTheSaveWasNeverLoaded) {
  const Warnings warnings;
  job(4, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = with_optimizer(comm.rank(), 4);
    checkpointer.resume(state);
    checkpointer.save(state, 200);
  });
  EXPECT_THAT(warnings.text(), Not(HasSubstr("no rank's state has")));
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = model(comm.rank(), 2);
    checkpointer.resume(state);
    EXPECT_THAT(error_of([&] { checkpointer.save(with_optimizer(comm.rank(), 2), 300); }).what(),
                HasSubstr("4 of the 5 tensors"));
  });
  EXPECT_THAT(warnings.text(), HasSubstr("no rank's state has"));
}

TEST_F(Dropped, ExtraStateAndObjectsOfAnotherGridMayGo) {
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = model(comm.rank(), 2);
    state["x"] =
        ShardedTensor::from_rank_offsets("layer._extra_state", Tensor::zeros(DType::kUInt8, {4}),
                                         {{.axis = 0, .rank = comm.rank(), .count = 2}});
    state["rng"] = ShardedObject{.key = "rng_state",
                                 .data = Value(comm.rank()),
                                 .global_shape = {2},
                                 .global_offset = {comm.rank()}};
    checkpointer.save(state, 500);
  });
  set_tracker("500");
  const Warnings warnings;
  job(1, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = model(comm.rank(), 1);
    checkpointer.resume(state);
    checkpointer.save(state, 600);
  });
  EXPECT_EQ(warnings.text(), "");
}

TEST_F(Dropped, RenamedKeysAndOtherFormatsAreTheSameTensors) {
  const auto renamed = [](int rank, int ranks) {
    StateDict state = with_optimizer(rank, ranks);
    StateDict result = Value::dict();
    for (auto& [name, leaf] : state.as_dict()) {
      ShardedTensor shard = leaf.as_sharded_tensor();
      shard.key = "module." + shard.key;
      result[name.as_str()] = std::move(shard);
    }
    return result;
  };
  const Warnings warnings;
  for (const Compat compat : {Compat::kMegatron, Compat::kMegatron019, Compat::kDcp}) {
    SCOPED_TRACE(to_string(compat));
    set_tracker("100");
    Policy policy;
    policy.load.rename = {{.from = "^", .to = "module."}};
    policy.save.compat = compat;
    job(
        2,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          StateDict state = renamed(comm.rank(), 2);
          checkpointer.resume(state);
          checkpointer.save(state, 200);
        },
        policy);
    job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict state = renamed(comm.rank(), 2);
      checkpointer.resume(state);
      checkpointer.save(state, 300);
    });
    set_tracker("100");
    fs::remove_all(root_ / "iter_0000200");
    fs::remove_all(root_ / "iter_0000300");
  }
  EXPECT_THAT(warnings.text(), Not(HasSubstr("no rank's state has")));
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_dropped_test
