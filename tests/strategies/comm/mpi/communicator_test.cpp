#include <gmock/gmock.h>

#include "tests/strategies/comm/mpi/run_mpi.h"

namespace dckpt::testing::communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class MpiCommunicator : public OnEachMpi {
 protected:
  /// Returns what the first `reports` ranks found in a job of `ranks`.
  std::vector<std::string> job(const std::string& name, int ranks, int reports, int exit_code = 0) {
    const TempDir folder;
    const ToolRun done =
        run_ranks(ranks, GetParam().rank + " " + name + " " + folder.path().string());
    EXPECT_EQ(done.exit_code, exit_code) << done.out << done.err;
    std::vector<std::string> found;
    for (int rank = 0; rank < reports; ++rank) {
      EXPECT_TRUE(exists(folder / std::to_string(rank))) << "rank " << rank << " left nothing";
      found.push_back(slurp(folder / std::to_string(rank)));
    }
    return found;
  }
};
INSTANTIATE_TEST_SUITE_P(Mpi, MpiCommunicator, ::testing::ValuesIn(all_mpis()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(MpiCommunicator, ConformsOnFourRanks) {
  EXPECT_THAT(job("conformance", 4, 4), Each(IsEmpty()));
}

TEST_P(MpiCommunicator, SavesInTheBackgroundWhileTheProgramUsesMpi) {
  EXPECT_THAT(job("background_save", 3, 3), Each(IsEmpty()));
}

TEST_P(MpiCommunicator, ASilentRankIsNamedWithinTheTimeout) {
  EXPECT_THAT(job("silence", 3, 2, 5),
              Each(AllOf(StartsWith("unavailable: all_to_all: "), HasSubstr("rank 2"),
                         HasSubstr("later: unavailable: barrier cannot be completed"))));
}

TEST_P(MpiCommunicator, NeedsThreadsThatAllUseMpi) {
  EXPECT_THAT(job("single", 2, 2),
              Each(AllOf(StartsWith("invalid-argument: MPI provides MPI_THREAD_"),
                         HasSubstr("background saves communicate from a thread of their own"),
                         HasSubstr("MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE"))));
}

TEST_P(MpiCommunicator, NeedsAnMpiThatIsInitializedAndNotFinalized) {
  EXPECT_THAT(job("too_early", 1, 1),
              Each(StartsWith("invalid-argument: MPI is not initialized: call MPI_Init_thread")));
  EXPECT_THAT(job("too_late", 2, 2),
              Each(HasSubstr("MPI is finalized and carries no more messages")));
}

TEST_P(MpiCommunicator, RefusesNoCommunicatorAndNoTime) {
  EXPECT_THAT(job("misuse", 2, 2),
              Each(AllOf(StartsWith("invalid-argument: the MPI communicator is MPI_COMM_NULL"),
                         HasSubstr("invalid-argument: the timeout of a communicator is 0 ms"))));
}

}  // namespace
}  // namespace dckpt::testing::communicator_test
