// Training runs whose root is an object store: nothing is renamed or locked, a request takes 50 ms,
// and lists are late by more than that.

#include <gmock/gmock.h>

#include "dist_checkpointing/training_root/latest.h"
#include "strategies/storage/counting.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/golden.h"
#include "tests/support/object_store.h"

namespace dckpt::testing::checkpointer_objects_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using Milliseconds = ObjectStore::Milliseconds;
constexpr ObjectStore::Pace kSlow{Milliseconds(50), Milliseconds(200)};
constexpr int kRanks = 2;

class CheckpointerOnObjects : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(text);
    });
  }
  void TearDown() override {
    set_log_sink({});
    EXPECT_EQ(store_->forbidden(), 0);
  }

  void train(const Policy& policy, std::initializer_list<std::uint64_t> iterations) {
    run_ranks(kRanks, [&](Communicator& comm) {
      Checkpointer checkpointer(root_, policy, comm);
      for (const std::uint64_t iteration : iterations)
        checkpointer.save(state_at(iteration, comm.rank(), kRanks), iteration);
    });
  }

  const std::shared_ptr<ObjectStore> store_ = std::make_shared<ObjectStore>(kSlow);
  const Location root_{store_, "run"};
  std::mutex mutex_;
  std::vector<std::string> log_;
};

TEST_F(CheckpointerOnObjects, ARunResumesFromItsLastIteration) {
  Policy policy{.retention = {.keep_last = 2}};
  policy.save.integrity = true;
  train(policy, {100, 200, 300});
  run_ranks(kRanks, [&](Communicator& comm) {
    Checkpointer checkpointer(root_, policy, comm);
    StateDict state = empty_state(comm.rank(), kRanks);
    EXPECT_EQ(checkpointer.resume(state).iteration, 300U);
    EXPECT_TRUE(holds(state, 300, comm.rank(), kRanks));
    checkpointer.save_async(state_at(400, comm.rank(), kRanks), 400);
    checkpointer.wait();
  });
  EXPECT_EQ(find_latest(root_)->iteration, 400U);
  EXPECT_FALSE((root_ / "iter_0000100").stat());
  EXPECT_TRUE((root_ / "iter_0000300").stat());
  EXPECT_THAT(log_, Contains(HasSubstr("this storage has no locks")));
}

TEST_F(CheckpointerOnObjects, AnIterationWithoutItsLastFileIsSavedAnew) {
  train({}, {100, 200});
  store_->remove_all("run/iter_0000200/.metadata");
  EXPECT_EQ(find_latest(root_)->iteration, 100U);
  run_ranks(kRanks, [&](Communicator& comm) {
    Checkpointer checkpointer(root_, {}, comm);
    StateDict state = empty_state(comm.rank(), kRanks);
    EXPECT_EQ(checkpointer.resume(state).iteration, 100U);
    checkpointer.save(state_at(200, comm.rank(), kRanks), 200);
  });
  EXPECT_EQ(find_latest(root_)->iteration, 200U);
}

TEST_F(CheckpointerOnObjects, RequestsAreJoinedWhereThatIsCheaper) {
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kColumns = 8192;
  const auto reads_of = [&](const std::shared_ptr<Storage>& storage) {
    StateDict state;
    state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {kRows, kColumns}));
    const auto counters = std::make_shared<StorageCounters>();
    save(state, Location(storage, "it"));
    StateDict wanted;
    wanted["w"] = ShardedTensor::from_rank_offsets(
        "w", Tensor::zeros(DType::kFloat32, {kRows, 1024}), {{.axis = 1, .rank = 1, .count = 8}});
    load(wanted, Location(counting_storage(storage, counters), "it"),
         {.validate_access_integrity = false});
    return counters->reads.load();
  };
  EXPECT_LT(reads_of(std::make_shared<ObjectStore>(ObjectStore::Pace{})) + kRows / 2,
            reads_of(memory_storage()));
}

TEST(Objects, ReadingUsesTheRequestsThatTheStorageServesAtOnce) {
  const ObjectStore::Pace pace{.request = Milliseconds(5), .concurrency = 12};
  const auto store = std::make_shared<ObjectStore>(pace);
  StateDict state;
  for (int i = 0; i < 24; ++i) {
    const std::string key = "w" + std::to_string(i);
    state[Value(key)] =
        ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kFloat32, {512, 1024}), {});
  }
  save(state, Location(store, "it"));
  load(state, Location(store, "it"), {.threads = 1});
  EXPECT_GT(store->most_reads_at_once(), 6);
  EXPECT_LE(store->most_reads_at_once(), 12);
}

TEST(Objects, FormatsWithoutALastFileAreRefusedBeforeAnythingIsWritten) {
  const auto store = std::make_shared<ObjectStore>(ObjectStore::Pace{});
  const Refusal refusal = refusal_of([&] {
    convert(golden("mcore-0.14-flattened-tp2pp2dp2"), Location(store, "ranks"),
            {.source = {.keys = {.exclude = {"optimizer*", "rng_state*"}}},
             .target = {.strategy = "torch", .options = {{"transformer_impl", "local"}}}});
  });
  EXPECT_EQ(refusal.first, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal.second, HasSubstr("has no file that tells readers that it is complete"));
  EXPECT_THAT(store->list(""), ::testing::IsEmpty());
}

TEST(Objects, AConversionCannotBeResumedThere) {
  const auto store = std::make_shared<ObjectStore>(ObjectStore::Pace{});
  const Refusal refusal = refusal_of([&] {
    convert(golden("mcore-0.14-flattened-tp2pp2dp2"), Location(store, "copy"),
            {.target = {.resume = true}});
  });
  EXPECT_EQ(refusal.first, ErrorCode::kUnsupported);
  EXPECT_THAT(refusal.second, HasSubstr("leave out --resume"));
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_objects_test
