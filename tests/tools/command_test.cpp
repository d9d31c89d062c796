#include "tools/dckpt/commands/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "dist_checkpointing/save/save.h"
#include "examples/planners/load_planners.h"
#include "tests/support/arange.h"
#include "tests/support/temp_dir.h"

namespace dckpt::tool::command_test {
namespace {

/// A checkpoint whose weights a planner has stored as codes and scales.
class PlannedArgument : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { example::register_int8(); }
  void SetUp() override {
    StateDict state = Value::dict();
    state["w"] = ShardedTensor::whole("w", arange({4, 4}));
    SaveOptions options;
    options.registered_planner.name = "int8_weights";
    save(state, scratch_ / "run", options);
  }
  CheckpointArgument argument(const std::string& load_planner = "") const {
    CheckpointArgument made{.path = (scratch_ / "run").string()};
    if (load_planner.empty()) return made;
    made.policy = (scratch_ / "policy.yaml").string();
    std::ofstream(made.policy) << "version: 1\nload: {planner: {kind: " << load_planner << "}}\n";
    return made;
  }
  static bool shows_codes(const CheckpointReader& reader) {
    return reader.metadata().find_tensor("w.scales") != nullptr;
  }

  TempDir scratch_;
};

TEST_F(PlannedArgument, IsOpenedByThePlannerThatItNamesOrThatAPolicyNames) {
  EXPECT_FALSE(shows_codes(*argument().open()));
  EXPECT_FALSE(shows_codes(*argument("int8_weights").open()));
  EXPECT_TRUE(shows_codes(*argument("stored").open()));
}

TEST_F(PlannedArgument, IsWhatIsStoredForACommandThatLooksAtThatWhateverAPolicyNames) {
  for (const char* const planner : {"", "int8_weights", "stored"}) {
    CheckpointArgument looked_at = argument(planner);
    looked_at.planner.clear();
    EXPECT_TRUE(shows_codes(*looked_at.open())) << planner;
  }
}

TEST_F(PlannedArgument, IsShownByAPlannerTogetherWithWhatIsStored) {
  for (const char* const planner : {"", "int8_weights"}) {
    const CheckpointArgument::Shown shown = argument(planner).open_shown();
    EXPECT_FALSE(shows_codes(*shown.reader)) << planner;
    ASSERT_NE(shown.stored, nullptr) << planner;
    EXPECT_TRUE(shows_codes(*shown.stored)) << planner;
  }
  EXPECT_TRUE(shows_codes(*argument("stored").open_shown().reader));
}

}  // namespace
}  // namespace dckpt::tool::command_test
