// Hooks of a trainer in a save, and the warnings about common states that differ between ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/common_comparison.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing::save_hooks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SaveHooksTest : public ::testing::Test {
 protected:
  /// Saves the states that `state` makes for three ranks. Returns the warnings.
  std::string warnings_of(const std::function<StateDict(int rank)>& state,
                          const SaveOptions& options = {}, const SaveHooks& hooks = {}) const {
    const Warnings warnings;
    run_ranks(3,
              [&](Communicator& comm) { save(state(comm.rank()), path_, options, comm, hooks); });
    return warnings.text();
  }

  TempDir directory_;
  std::filesystem::path path_ = directory_ / "checkpoint";
};

TEST_F(SaveHooksTest, EqualCommonStatesGiveNoWarningInAnyOrderOfKeys) {
  EXPECT_THAT(warnings_of([](int rank) {
                return rank == 0 ? Value::dict({{"a", 1}, {"b", Value::list({Value(2)})}})
                                 : Value::dict({{"b", Value::list({Value(2)})}, {"a", 1}});
              }),
              IsEmpty());
}

TEST_F(SaveHooksTest, Rank0TellsWhereCommonStatesDifferAndSavesItsOwn) {
  const std::string warnings = warnings_of([](int rank) {
    StateDict state = Value::dict(
        {{"args", Value::dict({{"lr", 0.1}, {"seeds", Value::list({Value(1), Value(2)})}})},
         {"iteration", 5}});
    if (rank == 0) state["args"]["only_here"] = 1;
    if (rank == 2) {
      state["args"]["lr"] = 1;
      state["args"]["seeds"].mutable_items()[1] = 7;
      state["extra"] = Value();
    }
    return state;
  });
  EXPECT_EQ(warnings,
            "the common state differs from rank 0's, which is saved:\n"
            "  on rank 2: 'args.lr' is 1, not 0.1; 'args.seeds.1' is 7, not 2; 'args.only_here' is "
            "missing; 'extra' is only there\n"
            "  on rank 1: 'args.only_here' is missing\n");
  EXPECT_TRUE(load_common_state(path_).at("args").contains("only_here"));
}

TEST_F(SaveHooksTest, RanksWhoseCommonStatesDifferInTheSameWayShareALine) {
  const auto state = [](int rank) { return Value::dict({{"host", rank == 0 ? "a" : "b"}}); };
  EXPECT_EQ(warnings_of(state),
            "the common state differs from rank 0's, which is saved:\n"
            "  on ranks 1, 2: 'host' is 'b', not 'a'\n");
}

TEST_F(SaveHooksTest, APolicyMakesDifferencesBetweenRanksAnError) {
  std::vector<SaveReport> reports(2);
  std::vector<std::string> errors(2);
  const auto save_differing = [&](const SaveOptions& options) {
    run_ranks(2, [&](Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      try {
        reports[rank] = save(Value::dict({{"host", comm.rank()}}), path_, options, comm);
      } catch (const CheckpointError& error) {
        errors[rank] = error.message();
      }
    });
  };
  save_differing({.error_on = {FindingCode::kRanksDiffer}});
  EXPECT_THAT(errors[0], HasSubstr("ranks-differ: the common state differs from rank 0's"));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_FALSE(std::filesystem::exists(path_));
  save_differing({.error_on = {FindingCode::kNoEffect}});
  ASSERT_EQ(reports[1].findings.size(), 1U) << "rank 0's";
  EXPECT_EQ(reports[1].findings[0].code, FindingCode::kRanksDiffer);
}

TEST_F(SaveHooksTest, AHookThatThrowsIsNamedWithItsRank) {
  const auto fail = [](int rank) {
    return [rank](auto&&...) -> StateDict {
      throw std::runtime_error("no luck on rank " + std::to_string(rank));
    };
  };
  const auto error_with = [&](int failing, const std::function<void(SaveHooks&)>& set) {
    std::vector<std::string> errors(3);
    run_ranks(3, [&](Communicator& comm) {
      SaveHooks hooks;
      if (comm.rank() == failing) set(hooks);
      try {
        save(Value::dict({{"step", 5}}), path_, {}, comm, hooks);
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    EXPECT_EQ(errors[1], errors[0]);
    EXPECT_EQ(errors[2], errors[0]);
    return errors[0];
  };
  EXPECT_THAT(error_with(2, [&](SaveHooks& hooks) { hooks.preprocess = fail(2); }),
              AllOf(HasSubstr("SaveHooks::preprocess: "), HasSubstr("no luck on rank 2"),
                    HasSubstr("[rank 2]")));
  EXPECT_THAT(error_with(1, [&](SaveHooks& hooks) { hooks.before_comparison = fail(1); }),
              AllOf(HasSubstr("SaveHooks::before_comparison: "), HasSubstr("[rank 1]")));
  EXPECT_THAT(error_with(0,
                         [&](SaveHooks& hooks) {
                           hooks.accept = [&](const Metadata&, const Value*) { (void)fail(0)(); };
                         }),
              AllOf(HasSubstr("SaveHooks::accept: "), HasSubstr("[rank 0]")));
}

TEST_F(SaveHooksTest, WhatMayDifferIsTakenOutBeforeTheComparisonButSaved) {
  const SaveHooks hooks{.before_comparison = [](StateDict common) {
    common.mutable_dict().erase("host");
    return common;
  }};
  const auto state = [](int rank) {
    return Value::dict({{"host", "node" + std::to_string(rank)}, {"iteration", 5}});
  };
  EXPECT_THAT(warnings_of(state, {}, hooks), IsEmpty());
  EXPECT_EQ(load_common_state(path_).at("host"), Value("node0"));
  EXPECT_THAT(warnings_of(state, {.overwrite = true}), Not(IsEmpty()));
  EXPECT_THAT(warnings_of(state, {.planner = {.validate = false}, .overwrite = true}), IsEmpty())
      << "whole-job checks are off";
}

TEST_F(SaveHooksTest, ATensorThatDiffersFromRank0sIsAnErrorOnAllRanks) {
  const auto number = [](float value) {
    Tensor tensor = Tensor::empty(DType::kFloat32, {1});
    *reinterpret_cast<float*>(tensor.data()) = value;
    return tensor;
  };
  const auto error_of_rank_1 = [&](const std::function<StateDict(int)>& state) {
    std::string errors[2];
    run_ranks(2, [&](Communicator& comm) {
      try {
        save(state(comm.rank()), path_, {.overwrite = true}, comm);
      } catch (const CheckpointError& error) {
        errors[comm.rank()] = error.what();
      }
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[1];
  };
  const auto weights = [&](float value) {
    return Value::dict({{"model", Value::tuple({number(value), 1})}});
  };
  EXPECT_THAT(error_of_rank_1([&](int rank) { return weights(static_cast<float>(rank)); }),
              HasSubstr("these tensors are not the same there: 'model.0'; describe"));
  EXPECT_THAT(error_of_rank_1([&](int rank) {
                return rank == 0 ? Value::dict({{"a", 1}}) : weights(1);
              }),
              HasSubstr("model"));
  EXPECT_THAT(error_of_rank_1([&](int rank) {
                return rank == 1 ? Value::dict({{"a", 1}}) : weights(1);
              }),
              IsEmpty())
      << "rank 0's is saved";
  EXPECT_THAT(error_of_rank_1([&](int) { return weights(1); }), IsEmpty());
}

TEST_F(SaveHooksTest, TheStateMayBeChangedBeforeItIsSavedWithoutChangingTheTrainers) {
  const SaveHooks hooks{.preprocess = [](StateDict state) {
    state.mutable_dict().erase("scratch");
    return state;
  }};
  StateDict state = Value::dict({{"scratch", 1}, {"iteration", 5}});
  const auto alone = single_rank();
  save(state, path_, {}, *alone, hooks);
  EXPECT_EQ(load_common_state(path_), Value::dict({{"iteration", 5}}));
  EXPECT_TRUE(state.contains("scratch"));
}

TEST_F(SaveHooksTest, ContentMetadataComesBackAsItWas) {
  const auto alone = single_rank();
  const auto saved_with = [&](std::optional<Value> metadata) {
    save(Value::dict({{"iteration", 5}}), path_, {.overwrite = true}, *alone,
         {.content_metadata = std::move(metadata)});
    return load_content_metadata(path_);
  };
  EXPECT_EQ(saved_with(std::nullopt), std::nullopt);
  EXPECT_EQ(saved_with(Value::dict()), Value::dict()) << "empty is not none";
  const Value nested = Value::dict({{"type", Value::tuple({Value("fully_reshardable"), Value(1)})},
                                    {Value(7), Value::dict({{Value(0), Value()}})}});
  EXPECT_EQ(saved_with(nested), nested);
}

TEST_F(SaveHooksTest, ACheckpointerPassesThemToEverySave) {
  const auto alone = single_rank();
  Checkpointer checkpointer(directory_ / "run", {}, *alone, {.content_metadata = Value("v2")});
  checkpointer.save(Value::dict({{"iteration", 1}}), 1);
  checkpointer.save_async(Value::dict({{"iteration", 2}}), 2).wait();
  for (const char* const name : {"iter_0000001", "iter_0000002"})
    EXPECT_EQ(load_content_metadata(directory_ / "run" / name), Value("v2"));
}

}  // namespace
}  // namespace dckpt::testing::save_hooks_test
