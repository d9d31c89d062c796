// Steps that only rank 0 takes: all ranks get its error, which names rank 0.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "dist_checkpointing/planner/planner_registry.h"
#include "strategies/comm/agree.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/collective_jobs.h"
#include "tests/dist_checkpointing/errors_of_survivors.h"

namespace dckpt::testing::rank_0_steps_test {
namespace {

constexpr int kRanks = 3;

[[noreturn]] void fail_as(const std::string& how) {
  if (how == "its own error") throw std::logic_error("a bug of the planner");
  throw CheckpointError(ErrorCode::kMismatch, "the planner refuses");
}
std::string how_it_fails;

class FailingLoads final : public MCoreLoadPlanner {
 public:
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan>) override {
    fail_as(how_it_fails);
  }
};
class FailingSaves final : public MCoreSavePlanner {
 public:
  GlobalPlan create_global_plan(const LocalPlans&) override { fail_as(how_it_fails); }
};

/// Returns the errors of all ranks.
std::vector<std::string> errors_of(const CollectiveJob::Task& job, const Location& root) {
  std::vector<std::string> errors(kRanks);
  run_ranks(kRanks, [&](Communicator& comm) {
    try {
      job(root, comm);
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  return errors;
}

TEST(StepsOfRank0, AreNamedByAllRanks) {
  register_planner(load_planner_entry<FailingLoads>("failing", "throws on rank 0"));
  register_planner(save_planner_entry<FailingSaves>("failing", "throws on rank 0"));
  const Location root(memory_storage("memory:"), "run");
  const auto save_with = [](const SaveOptions& options, const std::string& name) {
    return [options, name](const Location& place, Communicator& comm) {
      save(state_at(1, comm.rank(), kRanks), place / name, options, comm);
    };
  };
  ASSERT_THAT(errors_of(save_with({}, "sound"), root), ::testing::Each(""));
  SaveOptions saves;
  saves.registered_planner.name = "failing";
  LoadOptions loads;
  loads.registered_planner.name = "failing";
  const std::vector<std::pair<std::string, CollectiveJob::Task>> jobs = {
      {"save by a planner", save_with(saves, "out")},
      {"load by a planner", [&](const Location& place, Communicator& comm) {
         StateDict state = empty_state(comm.rank(), kRanks);
         load(state, place / "sound", loads, comm);
       }}};
  for (const auto& [name, job] : jobs) {
    for (const char* const how : {"its own error", "a refusal"}) {
      SCOPED_TRACE(name + ", " + how);
      how_it_fails = how;
      for (const std::string& error : errors_of(job, root)) {
        EXPECT_TRUE(names_rank(error, 0)) << error;
        EXPECT_TRUE(names_phase(error)) << error;
      }
    }
  }
}

TEST(StepsOfRank0, ErrorsAboutWhatAllRanksPassedAreNotItsOwn) {
  const auto errors = errors_of(
      [](const Location&, Communicator& comm) {
        decide(comm, [] { throw CheckpointError(ErrorCode::kMismatch, "the ranks disagree"); });
      },
      Location(memory_storage("memory:"), "run"));
  EXPECT_THAT(errors, ::testing::Each("the ranks disagree"));
}

}  // namespace
}  // namespace dckpt::testing::rank_0_steps_test
