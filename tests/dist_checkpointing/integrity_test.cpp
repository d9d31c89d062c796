#include "dist_checkpointing/integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dist_checkpointing/load.h"
#include "dist_checkpointing/save.h"
#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;

/// A row of a tensor on each of two ranks.
StateDict rows(int rank, float value) {
  Tensor row = Tensor::zeros(DType::kFloat32, {1, 4});
  std::fill_n(reinterpret_cast<float*>(row.data()), 4, value);
  return Value::dict({{"w", ShardedTensor::from_rank_offsets("w", row, {{0, rank, kRanks}})}, {"step", 7}});
}

class VerifiedLoad : public ::testing::Test {
 protected:
  void save_with(bool integrity) {
    run_ranks(kRanks, [&](Communicator& comm) { save(rows(comm.rank(), 1), path(), {.integrity = integrity}, comm); });
  }
  /// The same on every rank, "" if none fails.
  std::string load_verified() {
    std::string errors[kRanks];
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = rows(comm.rank(), 0);
      try {
        load(state, path(), {.verify_integrity = true}, comm);
      } catch (const CheckpointError& error) {
        errors[comm.rank()] = error.what();
      }
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  }
  void append_to(const std::string& file, const std::string& text) { std::ofstream(path() / file, std::ios::app) << text; }
  fs::path path() const { return directory_.path() / "checkpoint"; }

 private:
  TempDir directory_;
};

TEST_F(VerifiedLoad, AcceptsAnUntouchedCheckpoint) {
  save_with(true);
  EXPECT_EQ(load_verified(), "");
  StateDict state = rows(0, 0);
  EXPECT_NO_THROW(load(state, testing::golden("mcore-head-synthetic"), {.strict = Strict::kIgnoreAll, .verify_integrity = true})) << "Megatron's manifest";
}

TEST_F(VerifiedLoad, FailsForAnyDifferenceAlsoOfMetadataThatStillParse) {
  save_with(true);
  append_to("metadata.json", "\n");
  EXPECT_THAT(load_verified(), AllOf(HasSubstr("metadata.json: hash mismatch (expected "), Not(HasSubstr(".distcp"))));
  StateDict state = rows(0, 0);
  EXPECT_NO_THROW(load(state, path(), {.validate_access_integrity = false})) << "without verification it loads";
}

TEST_F(VerifiedLoad, FailsForAMissingFile) {
  save_with(true);
  fs::remove(path() / "__1_0.distcp");
  EXPECT_THAT(load_verified(), HasSubstr("__1_0.distcp: file missing or unreadable"));
}

TEST_F(VerifiedLoad, FailsWithoutAManifest) {
  save_with(false);
  EXPECT_THAT(load_verified(), HasSubstr("it has no integrity.json"));
}

TEST_F(VerifiedLoad, TheRanksShareTheFilesAndTellEachOther) {
  save_with(true);
  append_to("__0_0.distcp", "x");
  append_to("__1_0.distcp", "x");
  append_to("common.pt", "x");
  EXPECT_THAT(load_verified(), AllOf(HasSubstr("Checkpoint integrity verification failed"), HasSubstr("rank")));
}

}  // namespace
}  // namespace dckpt
