#include "dist_checkpointing/load/key_check.h"

#include <gmock/gmock.h>

#include <mutex>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"

namespace dckpt::key_check_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Returns the message that each rank gets; empty for none.
std::vector<std::string> messages(int ranks, const std::function<void(Communicator&)>& work) {
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& comm) {
    try {
      work(comm);
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      found[static_cast<std::size_t>(comm.rank())] = error.message();
    }
  });
  return found;
}

KeyDifference check_keys(const Asked& asked, const KeySet& stored, StrictHandling strict,
                         Communicator& comm) {
  Findings findings;
  return dckpt::check_keys(asked, stored, strict, comm, findings);
}

const KeySet kStored = {"common_state", "layers.0.w", "layers.1.w", "norm"};

/// Requests layer r + 1 on rank r of two: rank 1's is not stored.
Asked next_layer(Communicator& comm) {
  return {.keys = {"layers." + std::to_string(comm.rank() + 1) + ".w"}};
}

TEST(CheckKeys, TellsAllRanksWhatIsMissingAndUnexpectedAnywhere) {
  EXPECT_THAT(
      messages(2,
               [](Communicator& comm) {
                 check_keys(next_layer(comm), kStored, StrictHandling::kRaiseAll, comm);
               }),
      Each(
          R"(Some keys found in the checkpoint are missing in the provided sharded state dict. Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. 
Missing keys (for all ranks):
  'layers.0.w'
  'norm'
Unexpected keys (for rank 1 of 2):
  'layers.2.w': the checkpoint has 2 others, e.g. 'layers.0.w'
load.strict: log_all goes on without these keys.)"));
}

TEST(CheckKeys, ModesForUnexpectedKeysIgnoreMissingOnes) {
  EXPECT_THAT(
      messages(1,
               [](Communicator& comm) {
                 check_keys({.keys = {"norms"}}, kStored, StrictHandling::kRaiseUnexpected, comm);
               }),
      ElementsAre(
          R"(Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. 
Unexpected keys (for this rank):
  'norms': did you mean 'norm'?
load.strict: log_unexpected goes on without these keys.)"));
  EXPECT_THAT(messages(2,
                       [](Communicator& comm) {
                         check_keys({.keys = {"norm"}}, kStored, StrictHandling::kRaiseUnexpected,
                                    comm);
                       }),
              Each(IsEmpty()));
}

TEST(CheckKeys, ModesThatReturnSayWhatEachRankAskedFor) {
  run_ranks(2, [](Communicator& comm) {
    const KeyDifference found =
        check_keys(next_layer(comm), kStored, StrictHandling::kReturnAll, comm);
    EXPECT_EQ(found.missing, (KeySet{"layers.0.w", "norm"})) << "the common state is never missing";
    EXPECT_EQ(found.unexpected, comm.rank() == 0 ? KeySet{} : KeySet{"layers.2.w"});
  });
}

TEST(CheckKeys, ModesThatLogWarnOnceForAllRanks) {
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view message) { warnings.emplace_back(message); });
  run_ranks(3, [](Communicator& comm) {
    check_keys({.keys = {"norm", "other"}}, kStored, StrictHandling::kLogUnexpected, comm);
  });
  run_ranks(3, [](Communicator& comm) {
    check_keys({.keys = {"norm"}}, kStored, StrictHandling::kLogUnexpected, comm);
  });
  set_log_sink({});
  EXPECT_THAT(
      warnings,
      ElementsAre(
          R"(Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. 
Unexpected keys (for all 3 ranks):
  'other')"));
}

StoredKeys tensors(const KeySet& keys) {
  Metadata metadata;
  for (const std::string& key : keys) metadata.tensors.emplace_back().key = key;
  return StoredKeys(metadata, {});
}

TEST(RequireStored, IsOneErrorForTheWholeJob) {
  EXPECT_THAT(messages(3,
                       [](Communicator& comm) {
                         std::vector<std::string> asked = {"norm"};
                         if (comm.rank() != 1)
                           asked.push_back("norm" + std::to_string(comm.rank()));
                         require_stored({.keys = asked}, tensors(kStored), {},
                                        "keys are asked for that are not there", comm);
                       }),
              Each(R"(keys are asked for that are not there, on ranks 0, 2 of 3:
  'norm0': did you mean 'norm'?
  'norm2': did you mean 'norm'?)"));
  EXPECT_THAT(messages(3,
                       [](Communicator& comm) {
                         require_stored({.keys = {"norm"}}, tensors(kStored), {},
                                        "keys are asked for", comm);
                       }),
              Each(IsEmpty()));
}

TEST(RequireStored, TellsWhatIsStoredOtherwiseInTheSameError) {
  const auto asked_by = [](int rank) {
    Asked asked{.keys = {"norms"}};
    if (rank == 1) asked.keys.clear();
    for (int layer = 0; layer < rank; ++layer)
      asked.misfits.push_back(
          {"another shape for", "layers." + std::to_string(layer) + ".w", "pad it"});
    return asked;
  };
  EXPECT_THAT(messages(3,
                       [&](Communicator& comm) {
                         require_stored(asked_by(comm.rank()), tensors(kStored), {},
                                        "keys are asked for", comm);
                       }),
              Each(R"(keys are asked for, on ranks 0, 2 of 3:
  'norms': did you mean 'norm'?
the request does not fit what is stored, on ranks 1, 2 of 3:
  another shape for 'layers.*.w' (2 keys, e.g. 'layers.0.w'): pad it)"));
  EXPECT_THAT(
      messages(2,
               [](Communicator& comm) {
                 check_keys({{}, {{"another dtype for", "norm"}}}, kStored,
                            StrictHandling::kRaiseUnexpected, comm);
               }),
      Each("the request does not fit what is stored, on all 2 ranks:\n  another dtype for 'norm'"));
}

TEST(RequireStored, SuggestsTheRuleThatExplainsAll) {
  EXPECT_THAT(messages(1,
                       [](Communicator& comm) {
                         require_stored({.keys = {"layers.0.w", "norm"}},
                                        tensors({"module.layers.0.w", "module.norm"}), {},
                                        "keys are asked for", comm);
                       }),
              ElementsAre(R"(keys are asked for:
  'layers.0.w'
  'norm'
All of them are stored under other names. This in the policy gives them the names asked for:
  load: {rename: [{from: "^module\\.(.*)$", to: "\\1"}]})"));
}

}  // namespace
}  // namespace dckpt::key_check_test
