#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "operations/convert/convert.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::mixed_saves_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;
const std::string kOtherSave = "is of another save than .metadata";

/// Returns two rows of each rank, an object of each, and a common state, with different values at
/// each step.
StateDict state_of(int rank, int step) {
  Tensor row = Tensor::zeros(DType::kFloat32, {1, 64});
  std::fill_n(reinterpret_cast<float*>(row.data()), 64, static_cast<float>(step));
  Tensor frozen = Tensor::zeros(DType::kFloat32, {1, 8});
  return Value::dict(
      {{"w", ShardedTensor::from_rank_offsets("w", row, {{0, rank, kRanks}})},
       {"frozen", ShardedTensor::from_rank_offsets("frozen", frozen, {{0, rank, kRanks}})},
       {"rng", ShardedObject{.key = "rng",
                             .data = "of step " + std::to_string(step),
                             .global_shape = {kRanks},
                             .global_offset = {rank}}},
       {"step", step}});
}

/// Saves of steps 1 and 2 with the same layout, side by side.
class MixedFiles : public ::testing::Test {
 protected:
  void save_both(const SaveOptions& options) const {
    for (const int step : {1, 2}) {
      fs::remove_all(path(step));
      run_ranks(kRanks, [&](Communicator& comm) {
        save(state_of(comm.rank(), step), path(step), options, comm);
      });
    }
  }
  void take_from_step_1(const std::string& file) const {
    fs::copy_file(path(1) / file, path(2) / file, fs::copy_options::overwrite_existing);
  }
  /// Returns the error, which is the same on every rank; "" if none fails.
  std::string load_step_2(const LoadOptions& options = {}) const {
    std::string errors[kRanks];
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), 0);
      try {
        load(state, path(2), options, comm);
      } catch (const CheckpointError& error) {
        errors[comm.rank()] = error.what();
      }
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  }
  std::string problems() const {
    std::string text;
    for (const CheckpointError& problem : verify(*open_checkpoint(path(2))).problems)
      text += problem.what() + std::string("\n");
    return text;
  }
  fs::path path(int step) const { return directory_.path() / std::to_string(step); }

 private:
  TempDir directory_;
};

TEST_F(MixedFiles, OfTwoSavesAreNeitherVerifiedNorLoaded) {
  for (const Compat compat : {Compat::kMegatron, Compat::kMegatron019, Compat::kDcp}) {
    std::vector<std::string> data{"__0_0.distcp", "__1_0.distcp"};
    for (const std::string& file : data) {
      save_both({.compat = compat});
      EXPECT_EQ(problems(), "");
      EXPECT_EQ(load_step_2(), "");
      take_from_step_1(file);
      EXPECT_THAT(problems(), AllOf(HasSubstr(kOtherSave), HasSubstr(file)));
      EXPECT_THAT(problems(), Not(HasSubstr(file == data[0] ? data[1] : data[0])));
      for (const bool parallel : {false, true})
        EXPECT_THAT(load_step_2({.parallel = {.enabled = parallel}}),
                    AllOf(HasSubstr(kOtherSave), HasSubstr(file)));
      EXPECT_THAT(testing::error_of([&] { convert(path(2), path(3)); }).what(),
                  HasSubstr(kOtherSave));
    }
    save_both({.compat = compat});
    take_from_step_1(".metadata");
    EXPECT_THAT(problems(), AllOf(HasSubstr(kOtherSave), HasSubstr(data[0]), HasSubstr(data[1])));
    EXPECT_THAT(load_step_2(), HasSubstr(kOtherSave));
  }
}

TEST_F(MixedFiles, TheCommonStateBelongsToItsSave) {
  save_both({});
  take_from_step_1("common.pt");
  EXPECT_THAT(problems(),
              AllOf(HasSubstr(kOtherSave), HasSubstr("common.pt"), Not(HasSubstr(".distcp]"))));
  EXPECT_THAT(load_step_2(), AllOf(HasSubstr(kOtherSave), HasSubstr("common.pt")));
}

TEST_F(MixedFiles, AreLoadedByWhomWantsThem) {
  for (const auto& [compat, name] :
       {std::pair(Compat::kMegatron, "torch_dist"), {Compat::kDcp, "dcp"}}) {
    save_both({.compat = compat});
    take_from_step_1(".metadata");
    const std::string advice =
        str_format("load: {{backend: {{name: {}, options: {{mixed_saves: accept}}}}}}", name);
    EXPECT_THAT(load_step_2(), HasSubstr(advice));
    EXPECT_EQ(load_step_2(Policy::from_text("version: 1\n" + advice + "\n").load), "");
  }
}

TEST_F(MixedFiles, DoNotMatterWhereTheSavesAreEqual) {
  save_both({});
  take_from_step_1("__0_0.distcp");
  EXPECT_NO_THROW((void)load_state_dict(path(2), {"frozen"}));
  EXPECT_THAT(testing::error_of([&] { (void)load_state_dict(path(2), {"w"}); }).what(),
              HasSubstr(kOtherSave));
}

TEST_F(MixedFiles, AreNotNoticedWithoutChecksums) {
  save_both({.io = {.checksums = false}});
  take_from_step_1("__0_0.distcp");
  EXPECT_THAT(problems(), Not(HasSubstr("'w'"))) << "objects have checksums always";
}

TEST_F(MixedFiles, OfARewrittenCheckpointAreToldApartToo) {
  save_both({});
  for (const int step : {1, 2}) {
    remove_sharded_tensors(path(step), {"frozen"});
    EXPECT_TRUE(verify(*open_checkpoint(path(step))).ok()) << "what is left is what was saved";
    const fs::path copy = path(step).string() + "-copy";
    convert(path(step), copy);
    fs::remove_all(path(step));
    fs::rename(copy, path(step));
  }
  EXPECT_EQ(problems(), "");
  take_from_step_1("__0_0.distcp");
  EXPECT_THAT(problems(), HasSubstr(kOtherSave));
}

TEST_F(MixedFiles, OfOtherProducersAreNotKnown) {
  const fs::path golden = testing::golden("mcore-head-synthetic");
  EXPECT_TRUE(verify(*open_checkpoint(golden)).ok());
  EXPECT_EQ(open_checkpoint(golden)->metadata().common_crc, 0U);
}

}  // namespace
}  // namespace dckpt::mixed_saves_test
