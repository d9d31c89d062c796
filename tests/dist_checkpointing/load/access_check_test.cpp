#include "dist_checkpointing/load/access_check.h"

#include <gmock/gmock.h>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::access_check_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class AccessCheck : public ::testing::Test {
 protected:
  AccessCheck() {
    StateDict state;
    state["w"] = ShardedTensor::whole("w", arange({4, 3}));
    for (int cell = 0; cell < 2; ++cell)
      state["rng"][std::to_string(cell)] = ShardedObject{"rng", Value(cell), {2}, {cell}};
    save(state, path());
  }

  std::filesystem::path path(const std::string& name = "checkpoint") const {
    return directory_.path() / name;
  }

  /// The request of a rank: rows of the tensor, as a replica of this number, and a cell of the
  /// objects.
  struct Asked {
    std::int64_t rows_from = 0;
    int replica = 0;
    int cell = 0;
  };
  std::vector<std::string> errors_of(const std::array<Asked, 2>& asked, bool validate) {
    std::vector<std::string> errors(2);
    run_ranks(2, [&](Communicator& comm) {
      const Asked& mine = asked[static_cast<std::size_t>(comm.rank())];
      StateDict state;
      state["w"] = ShardedTensor::from_rank_offsets(
          "w", Tensor::zeros(DType::kFloat32, {2, 3}),
          {{.axis = 0, .rank = mine.rows_from / 2, .count = 2}}, {.replica_id = mine.replica});
      state["rng"] = ShardedObject{"rng", Value(), {2}, {mine.cell}};
      try {
        load(state, path(), {.validate_access_integrity = validate}, comm);
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(comm.rank())] = error.what();
      }
    });
    return errors;
  }

 private:
  TempDir directory_;
};

TEST_F(AccessCheck, RanksThatShareEveryKeyAmongThemLoad) {
  EXPECT_THAT(errors_of({{{0, 0, 0}, {2, 0, 1}}}, true), Each(""));
}

TEST_F(AccessCheck, PartsThatTwoRanksOrNobodyAsksForAreAnErrorOnAllRanks) {
  EXPECT_THAT(errors_of({{{0, 0, 0}, {0, 0, 1}}}, true),
              Each(AllOf(HasSubstr("Invalid access pattern"), HasSubstr("'w'"))));
  EXPECT_THAT(errors_of({{{0, 0, 0}, {2, 1, 1}}}, true),
              Each(AllOf(HasSubstr("Invalid access pattern"), HasSubstr("'w'"))))
      << "no main replica of the second half";
  EXPECT_THAT(errors_of({{{0, 0, 0}, {2, 0, 0}}}, true), Each(HasSubstr("rng")))
      << "one object twice, the other one not at all";
}

TEST_F(AccessCheck, AShardThatIsForgottenIsAnErrorByDefaultThatNamesTheOption) {
  StateDict half =
      Value::dict({{"w", ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, {2, 3}),
                                                 {4, 3}, {0, 0})}});
  try {
    load(half, path());
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'w'"), HasSubstr("set load.validate_access_integrity to false")));
  }
}

TEST_F(AccessCheck, ShardsOfAPlainDcpDirectoryMustCoverTheirTensorsReplicasOrNot) {
  save(Value::dict({{"w", arange({4, 3})}}), path("dcp"), {.compat = Compat::kDcp});
  run_ranks(4, [&](Communicator& comm) {
    const auto load_rows = [&](std::int64_t from) {
      StateDict state =
          Value::dict({{"w", ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, {2, 3}),
                                                     {4, 3}, {from, 0})}});
      load(state, path("dcp"), {}, comm);
    };
    EXPECT_NO_THROW(load_rows(comm.rank() % 2 * 2)) << "two ranks hold each half";
    EXPECT_THROW(load_rows(0), CheckpointError) << "nobody asks for the second half";
  });
}

TEST_F(AccessCheck, OfOneRankThatAsksForAKeyTwiceOrForAReplicaOnlyIsAnErrorToo) {
  const auto whole = [](int replica) {
    return ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {4, 3}), {},
                                            {.replica_id = replica});
  };
  for (StateDict state :
       {Value::dict({{"a", whole(0)}, {"b", whole(0)}}), Value::dict({{"a", whole(1)}})})
    EXPECT_THAT(testing::error_of([&] { load(state, path()); }).what(),
                HasSubstr("Invalid access pattern"));
}

TEST_F(AccessCheck, ALoadOfPartsSaysSo) {
  for (const bool validate : {true, false}) {
    StateDict all =
        Value::dict({{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {4, 3}))}});
    EXPECT_EQ(load(all, path(), {.validate_access_integrity = validate}).access_checked, validate);
  }
}

TEST_F(AccessCheck, WithoutItRanksAskForWhateverTheyLike) {
  EXPECT_THAT(errors_of({{{0, 0, 0}, {0, 0, 0}}}, false), Each(""));
}

}  // namespace
}  // namespace dckpt::access_check_test
