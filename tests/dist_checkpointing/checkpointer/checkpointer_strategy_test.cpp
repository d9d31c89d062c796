// Runs whose checkpoints only the strategy named by the policy can open.

#include <gmock/gmock.h>

#include "examples/raw_strategy/raw_strategy.h"
#include "strategies/registry/registry.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::checkpointer_strategy_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Strategy `raw` of the examples, which is not detected, and not opened without an option.
class CheckpointerStrategy : public CheckpointerTest {
 protected:
  CheckpointerStrategy() {
    raw::register_strategy();
    LoadStrategyEntry entry = find_load_strategy("raw");
    entry.matches = {};
    entry.check_options = [](const StrategySpec& strategy) {
      if (!strategy.options.has("site"))
        throw CheckpointError(ErrorCode::kInvalidArgument, "raw is opened with a site");
    };
    entry.open = [open = entry.open, check = entry.check_options](std::shared_ptr<Storage> storage,
                                                                  const OpenHints& hints) {
      check(hints.strategy);
      return open(std::move(storage), hints);
    };
    register_strategy(std::move(entry));
  }

  /// Returns the refusal of a save without having loaded.
  std::string refusal(const Policy& policy, const StateDict& state, std::uint64_t iteration) {
    return error_of([&] {
             job(
                 1,
                 [&](Checkpointer& checkpointer, Communicator&) {
                   checkpointer.save(state, iteration);
                 },
                 policy);
           })
        .what();
  }

  const Policy policy_ = Policy::from_text(R"(
version: 1
save: {strategy: raw}
load: {backend: {name: raw, options: {site: here}}}
retention: {keep_last: 2})");
};

TEST_F(CheckpointerStrategy, IsUsedWhereverTheRunLooksAtItsCheckpoints) {
  saved({100, 200, 300}, policy_);
  EXPECT_EQ(resumed(policy_), 300);
  job(
      2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.resume(state);
        checkpointer.save(state_at(400, comm.rank(), 2), 400);
      },
      policy_);
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000300", "iter_0000400", kTracker));

  EXPECT_THAT(refusal(policy_, state_at(400, 0, 1), 400),
              HasSubstr("refusing to replace iteration 400, which is complete"));
  Policy mistyped = policy_;
  mistyped.load.strategy.options = {};
  EXPECT_THAT(refusal(mistyped, state_at(400, 0, 1), 400), HasSubstr("raw is opened with a site"));
  EXPECT_THAT(refusal(policy_, Value::dict({{"w", Tensor::zeros(DType::kInt64, {2})}}), 500),
              HasSubstr("the state has plain tensors only"));

  fs::rename(root_ / "iter_0000400", root_ / ".iter_0000400.replaced-host-4194305-1-abcd");
  job(
      1, [](Checkpointer& checkpointer, Communicator&) { checkpointer.claim(); }, policy_);
  EXPECT_EQ(resumed(policy_), 400) << "what a save that died was replacing is back";

  fs::create_directory(root_ / "iter_0000500");
  job(
      1,
      [](Checkpointer& checkpointer, Communicator&) {
        checkpointer.save(state_at(500, 0, 1), 500);
      },
      policy_);
  EXPECT_EQ(resumed(policy_), 500) << "there was nothing to lose";
}

TEST_F(CheckpointerStrategy, ACompleteCheckpointOfAnotherFormatIsNotReplaced) {
  saved({100});
  EXPECT_THAT(refusal(policy_, state_at(100, 0, 1), 100),
              HasSubstr("refusing to replace iteration 100, which is complete"));
  EXPECT_THAT(error_of([&] { resumed(policy_); }).what(),
              HasSubstr("has the format 'torch_dist' version 1, but load.strategy asks for 'raw'"));
}

TEST_F(CheckpointerStrategy, MustExist) {
  const auto alone = single_rank();
  const auto refused = [&](const std::string& backend) {
    const Policy policy = Policy::from_text("version: 1\nload: {backend: " + backend + "}");
    return std::string(error_of([&] { Checkpointer(root_, policy, *alone); }).what());
  };
  EXPECT_THAT(refused("{name: rav}"), HasSubstr("did you mean 'raw'?"));
  EXPECT_THAT(refused("{name: torch_dist, version: 7}"),
              HasSubstr("no strategy reads backend 'torch_dist' version 7"));
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_strategy_test
