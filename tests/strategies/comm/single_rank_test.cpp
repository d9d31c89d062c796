#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/communicator.h"

namespace dckpt::single_rank_test {
namespace {

TEST(SingleRank, EveryOperationReturnsItsOwnBuffer) {
  const auto comm = single_rank();
  const Bytes mine = to_bytes("mine");
  const std::vector<Bytes> all = {mine};
  const std::vector<std::int64_t> values = {3, -4};
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  comm->barrier();
  EXPECT_EQ(comm->gather(mine, 0), all);
  EXPECT_EQ(comm->all_gather(mine), all);
  EXPECT_EQ(comm->scatter(all, 0), mine);
  EXPECT_EQ(comm->broadcast(mine, 0), mine);
  EXPECT_EQ(comm->all_to_all(all), all);
  EXPECT_EQ(comm->all_reduce(values, ReduceOp::kSum), values);
  EXPECT_EQ(comm->split(4)->size(), 1);
}

TEST(SingleRank, WrongRootsAndCountsAreRefused) {
  const auto comm = single_rank();
  EXPECT_THROW(comm->broadcast({}, 1), CheckpointError);
  EXPECT_THROW(comm->scatter({}, 0), CheckpointError);
  EXPECT_THROW(comm->all_to_all(std::vector<Bytes>(2)), CheckpointError);
}

TEST(SingleRank, AgreePassesErrorsThroughUnchanged) {
  const auto comm = single_rank();
  try {
    agree(*comm, "reading",
          [] { throw CheckpointError(ErrorCode::kMismatch, "no such key", {.key = "k"}); });
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(), "no such key [key 'k']");
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  }
}

TEST(SingleRank, AgreeTurnsOtherExceptionsIntoCheckpointErrors) {
  EXPECT_THROW(agree(*single_rank(), "reading", [] { throw std::bad_alloc(); }), CheckpointError);
  EXPECT_THROW(agree(*single_rank(), "reading", [] { throw 7; }), CheckpointError);
}

}  // namespace
}  // namespace dckpt::single_rank_test
