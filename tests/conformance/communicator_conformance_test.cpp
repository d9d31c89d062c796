#include "conformance/communicator_conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>

#include "strategies/comm/threads.h"

namespace dckpt::communicator_conformance_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Forwards everything, but makes one mistake.
class Mistaken final : public Communicator {
 public:
  enum class Mistake { kNone, kGathersInReverse, kIgnoresMinimum, kTakesAnyRoot };

  Mistaken(Communicator& base, Mistake mistake) : base_(base), mistake_(mistake) {}

  int rank() const noexcept override { return base_.rank(); }
  int size() const noexcept override { return base_.size(); }
  std::chrono::milliseconds timeout() const noexcept override { return base_.timeout(); }
  void barrier() override { base_.barrier(); }
  std::vector<Bytes> gather(ByteView mine, int root) override {
    if (mistake_ == Mistake::kTakesAnyRoot && root < 0) return {};
    return base_.gather(mine, root);
  }
  std::vector<Bytes> all_gather(ByteView mine) override {
    std::vector<Bytes> all = base_.all_gather(mine);
    if (mistake_ == Mistake::kGathersInReverse) std::ranges::reverse(all);
    return all;
  }
  Bytes scatter(std::span<const Bytes> parts, int root) override {
    return base_.scatter(parts, root);
  }
  Bytes broadcast(ByteView bytes, int root) override { return base_.broadcast(bytes, root); }
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    return base_.all_to_all(std::move(parts));
  }
  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp op) override {
    return base_.all_reduce(
        values, mistake_ == Mistake::kIgnoresMinimum && op == ReduceOp::kMin ? ReduceOp::kMax : op);
  }
  std::unique_ptr<Communicator> split(int color) override { return base_.split(color); }

 private:
  Communicator& base_;
  Mistake mistake_;
};

std::vector<std::string> problems_with(Mistaken::Mistake mistake, int ranks = 3) {
  std::vector<std::string> problems;
  std::mutex mutex;
  run_ranks(ranks, [&](Communicator& comm) {
    Mistaken mistaken(comm, mistake);
    const ConformanceReport report = check_communicator(mistaken);
    const std::lock_guard lock(mutex);
    problems.insert(problems.end(), report.problems.begin(), report.problems.end());
  });
  return problems;
}

TEST(CheckCommunicator, ThreadsConform) {
  for (const int ranks : {2, 3, 5})
    EXPECT_THAT(problems_with(Mistaken::Mistake::kNone, ranks), IsEmpty());
}

TEST(CheckCommunicator, NamesTheOperationThatIsWrong) {
  EXPECT_THAT(problems_with(Mistaken::Mistake::kGathersInReverse),
              Contains("rank 1: all_gather gave a wrong result"));
  EXPECT_THAT(problems_with(Mistaken::Mistake::kIgnoresMinimum),
              Contains("rank 0: all_reduce (min) gave a wrong result"));
  EXPECT_THAT(problems_with(Mistaken::Mistake::kTakesAnyRoot),
              Contains("rank 2: gather to a root outside the group gave a wrong result"));
}

TEST(CheckCommunicator, OneRankIsNotEnough) {
  EXPECT_THAT(check_communicator(*single_rank()).problems,
              Contains(HasSubstr("at least two ranks are needed")));
}

}  // namespace
}  // namespace dckpt::communicator_conformance_test
