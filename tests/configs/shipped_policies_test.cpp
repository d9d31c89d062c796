#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::shipped_policies_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 2;

/// Returns two rows of a tensor of four per rank, and an ordinary value.
StateDict state_of(int rank, const Tensor& rows) {
  StateDict state;
  state["weight"] = ShardedTensor::from_rank_offsets("decoder.weight", rows,
                                                     {{.axis = 0, .rank = rank, .count = kRanks}});
  state["iteration"] = 7;
  return state;
}

Tensor rows_with(int rank) {
  Tensor rows = Tensor::zeros(DType::kFloat32, {2, 3});
  auto* const values = reinterpret_cast<float*>(rows.data());
  for (int i = 0; i < 6; ++i) values[i] = static_cast<float>(rank * 6 + i + 1);
  return rows;
}

class ShippedPolicies : public ::testing::TestWithParam<std::string> {};

TEST_P(ShippedPolicies, IsSoundAndReadsBackFromItsEffectiveForm) {
  const Policy policy = Policy::shipped(GetParam());
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy);
  EXPECT_EQ(Policy::from_file("configs/policies/" + GetParam() + ".yaml"), policy);
}

TEST_P(ShippedPolicies, SavesAndLoads) {
  const Policy policy = Policy::shipped(GetParam());
  const TempDir directory;
  const std::filesystem::path checkpoint = directory / "checkpoint";
  run_ranks(kRanks, [&](Communicator& comm) {
    save(state_of(comm.rank(), rows_with(comm.rank())), checkpoint, policy.save, comm);
  });
  EXPECT_THAT(verify(*open_checkpoint(checkpoint), {.deep = true}).problems, IsEmpty());
  EXPECT_EQ(std::filesystem::exists(checkpoint / "integrity.json"), policy.save.integrity);
  EXPECT_EQ(std::filesystem::exists(checkpoint / "metadata.json"),
            policy.save.compat != Compat::kDcp);
  run_ranks(kRanks, [&](Communicator& comm) {
    const Tensor rows = Tensor::zeros(DType::kFloat32, {2, 3});
    StateDict state = state_of(comm.rank(), rows);
    load(state, checkpoint, policy.load, comm);
    EXPECT_EQ(std::memcmp(rows.data(), rows_with(comm.rank()).data(), rows.nbytes()), 0);
    EXPECT_EQ(state.at("iteration").as_int(), 7);
  });
}

std::vector<std::string> names_in_the_library() {
  std::vector<std::string> names;
  for (const ShippedPolicy& policy : shipped_policies()) names.emplace_back(policy.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, ShippedPolicies, ::testing::ValuesIn(names_in_the_library()),
                         [](const auto& test) { return test.param; });

TEST(ShippedPolicyNames, AreThoseOfTheFolder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("configs/policies"))
    files.push_back(entry.path().stem());
  EXPECT_THAT(names_in_the_library(), ::testing::UnorderedElementsAreArray(files));
}

TEST(ShippedPolicyNames, AreSuggested) {
  EXPECT_THAT(testing::error_of([] { Policy::shipped("prodction"); }).message(),
              HasSubstr("no policy 'prodction' is shipped (did you mean 'production'?); there are "
                        "'dcp_readers', "));
}

}  // namespace
}  // namespace dckpt::shipped_policies_test
