// A save does not lose what its run has not loaded: state that an optimizer makes in its first step
// does not replace the state of the checkpoint.

#include "dist_checkpointing/load/dropped_tensors.h"

#include <gmock/gmock.h>

#include "configs/policy/policy.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::dropped_tensors_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

ShardedTensor half(const std::string& key, int rank, std::int64_t value = 0) {
  Tensor data = Tensor::empty(DType::kInt64, {4});
  std::fill_n(data.data<std::int64_t>(), 4, value);
  return ShardedTensor::from_rank_offsets(key, data, {{.axis = 0, .rank = rank, .count = 2}});
}

/// Returns the weights, and the moments if the optimizer has made a step.
StateDict state_of(int rank, bool has_moments, std::int64_t value = 0) {
  StateDict state = Value::dict();
  state["model"]["w"] = half("model.w", rank, value);
  if (has_moments) {
    for (const char* const name : {"exp_avg", "exp_avg_sq"})
      state["optimizer"][name] = half(std::string("optimizer.") + name + ".w", rank, value);
  }
  state["iteration"] = 10;
  return state;
}

class NeverLoaded : public TrainingRun {
 protected:
  void SetUp() override { save_first({}); }

  void save_first(const SaveOptions& options) {
    fs::remove_all(root_);
    job(2,
        [](Checkpointer& checkpointer, Communicator& comm) {
          checkpointer.save(state_of(comm.rank(), true, 7), 10).wait();
        },
        {.save = options});
  }
};

TEST_F(NeverLoaded, IsNotSavedMadeAnew) {
  for (const char* const save :
       {"", "compat: megatron-0.19", "compat: dcp", "async: {enabled: true}"}) {
    SCOPED_TRACE(save);
    const Policy policy = Policy::from_text(std::string("version: 1\nsave: {") + save +
                                            "}\nretention: {keep_last: 1}");
    save_first(policy.save);
    const Warnings warnings;
    job(
        2,
        [](Checkpointer& checkpointer, Communicator& comm) {
          StateDict state = state_of(comm.rank(), false);
          const LoadReport report = checkpointer.resume(state).report;
          ASSERT_EQ(report.findings.size(), 1U);
          EXPECT_EQ(report.findings[0].code, FindingCode::kKeysNotLoaded);
          EXPECT_THAT(report.findings[0].keys,
                      ElementsAre("optimizer.exp_avg.w", "optimizer.exp_avg_sq.w"));
          for (int again = 0; again < 2; ++again) {
            const CheckpointError error =
                error_of([&] { checkpointer.save(state_of(comm.rank(), true), 20).wait(); });
            EXPECT_EQ(error.code(), ErrorCode::kMismatch);
            EXPECT_THAT(
                error.what(),
                AllOf(HasSubstr("2 of the 3 tensors"), HasSubstr("has not loaded from there"),
                      HasSubstr("'optimizer.exp_avg.w', 64 B"), HasSubstr("allow_unloaded"),
                      HasSubstr(".unloaded_keys = true")));
          }
        },
        policy);
    EXPECT_THAT(warnings.text(), AllOf(HasSubstr("no rank's state has 2 of the 3 tensors"),
                                       HasSubstr("'optimizer.exp_avg.w', 64 B")));
    EXPECT_EQ(tracker(), "10");
    EXPECT_TRUE(fs::exists(root_ / "iter_0000010"));
  }
}

TEST_F(NeverLoaded, MayBeginAnewWhereThePolicyNamesIt) {
  const Warnings warnings;
  job(
      2,
      [](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = state_of(comm.rank(), false);
        EXPECT_THAT(checkpointer.resume(state).report.findings, IsEmpty());
        checkpointer.save(state_of(comm.rank(), true), 20).wait();
      },
      Policy::from_text("version: 1\nload: {allow_unloaded: ['optimizer.*']}"));
  EXPECT_EQ(warnings.text(), "");
  set_tracker("10");
  job(
      2,
      [](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = state_of(comm.rank(), false);
        checkpointer.resume(state);
        EXPECT_THAT(
            error_of([&] { checkpointer.save(state_of(comm.rank(), true), 30).wait(); }).what(),
            AllOf(HasSubstr("1 of the 3 tensors"), HasSubstr("'optimizer.exp_avg_sq.w'")));
      },
      Policy::from_text("version: 1\nload: {allow_unloaded: ['*.exp_avg.*']}"));
}

TEST_F(NeverLoaded, IsSavedByOneCallThatAllowsIt) {
  const Warnings warnings;
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = state_of(comm.rank(), false);
    checkpointer.resume(state);
    checkpointer.save(state_of(comm.rank(), true), 20, {.unloaded_keys = true}).wait();
    EXPECT_THAT(error_of([&] { checkpointer.save(state_of(comm.rank(), true), 30).wait(); }).what(),
                HasSubstr("2 of the 3 tensors"));
  });
  EXPECT_EQ(tracker(), "20");
}

TEST_F(NeverLoaded, IsWhatNoLoadOfTheCheckpointHasRequested) {
  const auto moments = [](int rank) {
    StateDict all = state_of(rank, true);
    return Value::dict({{"optimizer", all["optimizer"]}});
  };
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    StateDict weights = state_of(comm.rank(), false);
    StateDict rest = moments(comm.rank());
    checkpointer.resume(weights);
    checkpointer.load(rest, 10);
    checkpointer.save(state_of(comm.rank(), true), 20).wait();
    checkpointer.load(rest, 20);
    EXPECT_THAT(error_of([&] { checkpointer.save(state_of(comm.rank(), true), 30).wait(); }).what(),
                HasSubstr("'model.w'"))
        << "of another checkpoint, the weights were not loaded";
  });
}

TEST_F(NeverLoaded, IsAnErrorBeforeAnythingIsLoadedIfThePolicySaysSo) {
  for (const bool plain : {false, true}) {
    run_ranks(2, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), false);
      const LoadOptions options{.error_on = {FindingCode::kKeysNotLoaded}};
      const CheckpointError error = error_of([&] {
        if (plain)
          load_plain(state, root_ / "iter_0000010", options, comm);
        else
          dckpt::load(state, root_ / "iter_0000010", options, comm);
      });
      EXPECT_THAT(error.what(), AllOf(HasSubstr("so nothing was loaded"), HasSubstr("exp_avg")));
      EXPECT_EQ(*state.at("model").at("w").as_sharded_tensor().data->data<std::int64_t>(), 0);
    });
  }
}

TEST_F(NeverLoaded, IsNamedByLoadAndRefusedByTheSavesThatGetItsCheck) {
  const Warnings warnings;
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), false);
    const LoadReport report = dckpt::load(state, root_ / "iter_0000010", {}, comm);
    const SaveHooks hooks{.accept = continuation_check(report)};
    EXPECT_THAT(error_of([&] {
                  dckpt::save(state_of(comm.rank(), true), root_ / "next", {}, comm, hooks);
                }).what(),
                HasSubstr("has not loaded from there"));
    EXPECT_THAT(error_of([&] { dckpt::save(state, root_ / "next", {}, comm, hooks); }).what(),
                HasSubstr("lacks 2 of the 3 tensors"));
    dckpt::save(state, root_ / "next", {}, comm,
                {.accept = continuation_check(report, {.dropped_keys = true})});
  });
  EXPECT_THAT(warnings.text(), HasSubstr("no rank's state has 2 of the 3 tensors"));
}

TEST_F(NeverLoaded, DoesNotCountWhereLoadsIgnoreWhatIsNotRequested) {
  const Warnings warnings;
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), false);
    dckpt::load(state, root_ / "iter_0000010", {.strict = StrictHandling::kIgnoreAll}, comm);
    StateDict common = Value::dict();
    dckpt::load(common, root_ / "iter_0000010", {}, comm);
  });
  EXPECT_THAT(warnings.text(), Not(HasSubstr("no rank's state has")))
      << "or another warning says so";
}

}  // namespace
}  // namespace dckpt::testing::dropped_tensors_test
