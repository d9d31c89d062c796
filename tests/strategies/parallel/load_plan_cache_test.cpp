// The state that ranks which load together keep for the next load.

#include "strategies/parallel/load_plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "strategies/parallel/parallel_read.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/watched_communicator.h"

namespace dckpt::load_plan_cache_test {
namespace {

using testing::counting;
using ::testing::Each;
using testing::FakeReader;
using ::testing::Values;

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 300, kColumns = 256;

class LoadPlanCacheTest : public ::testing::TestWithParam<Exchange> {
 protected:
  /// Returns 20 float tensors of (300, 256) whose elements count up from `first`, each in two
  /// chunks, after `before` other bytes.
  static FakeReader checkpoint(float first, std::int64_t before = 0) {
    FakeReader reader;
    if (before > 0) reader.object("o", Value(std::int64_t{1}));
    std::vector<float> elements = counting<float>(kRows * kColumns);
    for (float& element : elements) element += first;
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      reader.tensor("t" + std::to_string(i), DType::kFloat32, {kRows, kColumns}, elements,
                    {{{0, 0}, {kRows / 2, kColumns}}, {{kRows / 2, 0}, {kRows / 2, kColumns}}});
    }
    reader.write();
    return reader;
  }

  /// Loads 40 columns from `column(r)` on rank r. Returns the bytes that rank 0 brought to gathers.
  template <typename ColumnOf>
  std::uint64_t load(const CheckpointReader& reader, float first, ColumnOf&& column) {
    std::uint64_t gathered = 0;
    run_ranks(kRanks, [&](Communicator& threads) {
      testing::WatchedCommunicator comm(threads, [](std::uint64_t) {});
      const std::int64_t begin = column(comm.rank());
      std::vector<WantedShard> wanted;
      std::vector<Tensor> destinations;
      for (std::uint32_t i = 0; i < kTensors; ++i) {
        wanted.push_back({.tensor = i, .destination = i, .box = {{0, begin}, {kRows, 40}}});
        destinations.push_back(Tensor::zeros(DType::kFloat32, {kRows, 40}));
      }
      const auto items = plan_reads(reader.metadata(), wanted);
      read_tensors_parallel(
          reader, items, destinations, comm,
          {.exchange = GetParam(), .cache = &caches_[static_cast<std::size_t>(comm.rank())]});
      if (comm.rank() == 0) gathered = comm.gathered();
      for (const Tensor& tensor : destinations) {
        const auto* const values = reinterpret_cast<const float*>(tensor.data());
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < tensor.numel(); ++i)
          wrong += values[i] != first + static_cast<float>(i / 40 * kColumns + begin + i % 40);
        EXPECT_EQ(wrong, 0);
      }
    });
    return gathered;
  }

  std::vector<bool> hits() const {
    std::vector<bool> all;
    for (const LoadPlanCache& cache : caches_) all.push_back(cache.cache_hit());
    return all;
  }

  static constexpr std::uint32_t kTensors = 20;
  static std::int64_t spread(int rank) { return rank * 40; }
  std::vector<LoadPlanCache> caches_ = std::vector<LoadPlanCache>(kRanks);
};

TEST_P(LoadPlanCacheTest, TheSameLoadOfTheNextCheckpointExchangesAFewBytes) {
  load(checkpoint(0), 0, spread);
  EXPECT_THAT(hits(), Each(false));
  const std::uint64_t gathered = load(checkpoint(1000, 1), 1000, spread);
  EXPECT_THAT(hits(), Each(true));
  EXPECT_EQ(gathered, 4 * sizeof(std::uint64_t));
}

TEST_P(LoadPlanCacheTest, AChangedWishOnOneRankIsPlannedAnewOnAll) {
  const FakeReader reader = checkpoint(0);
  load(reader, 0, spread);
  const auto changed = [](int rank) { return rank == 1 ? std::int64_t{200} : spread(rank); };
  load(reader, 0, changed);
  EXPECT_THAT(hits(), Each(false));
  load(reader, 0, changed);
  EXPECT_THAT(hits(), Each(true));
  load(reader, 0, spread);
  EXPECT_THAT(hits(), Each(false));
}

TEST_P(LoadPlanCacheTest, ARankThatHasForgottenMakesAllPlanAnew) {
  const FakeReader reader = checkpoint(0);
  load(reader, 0, spread);
  caches_[2] = {};
  load(reader, 0, spread);
  EXPECT_THAT(hits(), Each(false));
  load(reader, 0, spread);
  EXPECT_THAT(hits(), Each(true));
}

TEST_P(LoadPlanCacheTest, OtherChunksArePlannedAnew) {
  load(checkpoint(0), 0, spread);
  FakeReader whole;
  for (std::uint32_t i = 0; i < kTensors; ++i)
    whole.tensor("t" + std::to_string(i), DType::kFloat32, {kRows, kColumns},
                 counting<float>(kRows * kColumns));
  whole.write();
  load(whole, 0, spread);
  EXPECT_THAT(hits(), Each(false));
}

INSTANTIATE_TEST_SUITE_P(Exchanges, LoadPlanCacheTest, Values(Exchange::kAuto, Exchange::kAllToAll),
                         [](const auto& test) {
                           return std::string(name_of(kExchangeNames, test.param));
                         });

}  // namespace
}  // namespace dckpt::load_plan_cache_test
