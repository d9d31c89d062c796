#include "operations/upkeep/fleet.h"

#include <gmock/gmock.h>

#include "strategies/storage/publication.h"
#include "tests/operations/upkeep/kept_root.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::fleet_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Status = FleetResult::Status;

class Fleet : public KeptRoot {
 protected:
  Fleet() {
    for (const std::uint64_t iteration : {1, 2, 3}) make(iteration);
  }

  std::vector<FleetResult> verify(FleetOptions options = {}) const {
    return verify_paths({root_.path().string()}, std::move(options));
  }
  std::vector<FleetResult> verify_paths(const std::vector<std::string>& paths,
                                        FleetOptions options = {}) const {
    options.state = state_;
    std::vector<FleetResult> results;
    verify_fleet(paths, options, [&](const FleetResult& result) { results.push_back(result); });
    std::ranges::sort(results, {}, &FleetResult::path);
    return results;
  }
  static std::vector<Status> states(const std::vector<FleetResult>& results) {
    std::vector<Status> states;
    for (const FleetResult& result : results) states.push_back(result.status);
    return states;
  }

  TempDir beside_;
  Location state_ = beside_ / "fleet.state";
};

TEST_F(Fleet, SkipsWhatHasNotChanged) {
  EXPECT_THAT(states(verify()),
              ElementsAre(Status::kVerified, Status::kVerified, Status::kVerified));
  EXPECT_THAT(states(verify()),
              ElementsAre(Status::kUnchanged, Status::kUnchanged, Status::kUnchanged));
  write("iter_0000002/notes.txt", "new");
  make(4);
  EXPECT_THAT(states(verify()), ElementsAre(Status::kUnchanged, Status::kVerified,
                                            Status::kUnchanged, Status::kVerified));
}

TEST_F(Fleet, ADeepCheckIsRememberedAsSuch) {
  verify();
  EXPECT_THAT(states(verify({.deep = true})),
              ElementsAre(Status::kVerified, Status::kVerified, Status::kVerified));
  for (const bool deep : {true, false}) {
    const auto results = verify({.deep = deep});
    EXPECT_THAT(states(results),
                ElementsAre(Status::kUnchanged, Status::kUnchanged, Status::kUnchanged));
    EXPECT_TRUE(results.front().deep);
  }
}

TEST_F(Fleet, ProblemsAreRepeatedUntilSomethingChanges) {
  fs::resize_file(path(2) / "__0_0.distcp", 20);
  fs::remove(path(3) / ".metadata");
  make_old(path(3));
  for (const Status expected : {Status::kVerified, Status::kUnchanged}) {
    const auto results = verify();
    EXPECT_EQ(results[1].status, expected);
    EXPECT_FALSE(results[1].ok());
    EXPECT_FALSE(results[1].refused);
    EXPECT_THAT(results[1].problem, HasSubstr("__0_0.distcp"));
    EXPECT_EQ(results[2].refused, ErrorCode::kIncomplete);
  }
  fs::remove_all(path(2));
  make(2);
  EXPECT_TRUE(verify()[1].ok());
}

TEST_F(Fleet, WhatAJobHasClaimedIsNoProblem) {
  fs::remove(path(3) / ".metadata");
  fs::remove(path(3) / "metadata.json");
  EXPECT_THAT(verify()[2].problem, HasSubstr("a job may still be writing it"));
  write(std::string("iter_0000003/") + kClaimPrefix + "1", mine());
  for (int run = 0; run < 2; ++run) {
    const auto results = verify();
    EXPECT_EQ(results[2].status, Status::kBeingSaved);
    EXPECT_TRUE(results[2].ok());
  }
  write(std::string("iter_0000003/") + kClaimPrefix + "1", ended());
  EXPECT_FALSE(verify()[2].ok());
}

TEST_F(Fleet, TakesRootsCheckpointsAndMistakesOnce) {
  const std::string root = root_.path().string();
  const auto results =
      verify_paths({root, path(2).string(), root + "/", root + "/nothing", "unknown://x"});
  std::vector<std::string> paths;
  for (const FleetResult& result : results) paths.push_back(result.path);
  EXPECT_THAT(paths, UnorderedElementsAre(path(1).string(), path(2).string(), path(3).string(),
                                          root + "/nothing", "unknown://x"));
  EXPECT_EQ(results[3].refused, ErrorCode::kIo);
  EXPECT_EQ(results[4].refused, ErrorCode::kUnsupported);
}

TEST_F(Fleet, ADamagedStateFileIsRefused) {
  verify();
  std::ifstream file(beside_ / "fleet.state");
  const std::string sound{std::istreambuf_iterator<char>(file), {}};
  std::string other = sound;
  other[other.find("\"deep\": false") + 8] = 't';
  std::string flipped = sound;
  flipped.replace(flipped.find("\"problems\": 0"), 13, "\"problems\": 1");
  for (const std::string& damaged : {sound.substr(0, sound.size() / 2), sound.substr(0, 40),
                                     sound.substr(0, 5), other, flipped}) {
    SCOPED_TRACE(damaged.substr(0, 40));
    std::ofstream(beside_ / "fleet.state", std::ios::trunc) << damaged;
    const CheckpointError error = error_of([&] { verify(); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), HasSubstr("remove it to verify all checkpoints again"));
  }
}

TEST_F(Fleet, SomethingElseIsNeverTakenForADamagedStateFile) {
  const auto expect_refused = [&](const fs::path& path) {
    SCOPED_TRACE(path);
    state_ = path;
    const CheckpointError error = error_of([&] { verify(); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("choose another name for the state file"),
                                    Not(HasSubstr("remove"))));
  };
  write("latest_checkpointed_iteration.txt", "3");
  for (const char* const name : {"", "iter_0000001", "latest_checkpointed_iteration.txt",
                                 "iter_0000001/.metadata", "iter_0000001/metadata.json"})
    expect_refused(root_.path() / name);
  for (const char* const text : {"", "[1]", "{}", "{\n \"version\": 2,\n", "/run/checkpoints\n"}) {
    std::ofstream(beside_ / "other", std::ios::trunc) << text;
    expect_refused(beside_ / "other");
    std::ifstream file(beside_ / "other");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
  }
}

TEST_F(Fleet, AStateFileInAMistypedDirectoryIsRefused) {
  state_ = beside_ / "nowhere" / "fleet.state";
  EXPECT_EQ(error_of([&] { verify(); }).code(), ErrorCode::kIo);
  EXPECT_FALSE(fs::exists(beside_ / "nowhere"));
}

TEST_F(Fleet, AnInterruptedRunContinues) {
  std::stop_source stop;
  FleetOptions options{.threads = 1, .state = state_, .stop = stop.get_token()};
  std::size_t seen = 0;
  EXPECT_EQ(error_of([&] {
              verify_fleet({root_.path().string()}, options, [&](const FleetResult&) {
                if (++seen == 2) stop.request_stop();
              });
            }).code(),
            ErrorCode::kCancelled);
  EXPECT_EQ(seen, 2U);
  EXPECT_THAT(states(verify()),
              ElementsAre(Status::kUnchanged, Status::kUnchanged, Status::kVerified));
}

TEST_F(Fleet, WhatIsGoneIsForgotten) {
  verify();
  fs::remove_all(path(1));
  verify();
  std::ifstream file(beside_ / "fleet.state");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, Not(HasSubstr("iter_0000001")));
  EXPECT_THAT(text, HasSubstr("iter_0000002"));
}

}  // namespace
}  // namespace dckpt::testing::fleet_test
