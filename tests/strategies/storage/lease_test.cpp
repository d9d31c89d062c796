#include "strategies/storage/lease.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "strategies/storage/forwarding.h"
#include "strategies/storage/memory.h"

namespace dckpt::lease_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr Lease::Period kPeriod{1000};

/// Files that are put arrive only when a period has gone by since this was made.
class LateStorage final : public ForwardingStorage {
 public:
  LateStorage() : ForwardingStorage(memory_storage()) {}
  void put(const std::string& name, ByteView content) override {
    std::this_thread::sleep_until(begin_ + kPeriod + std::chrono::milliseconds(10));
    storage_->put(name, content);
    ++puts;
  }

  std::atomic<int> puts{0};

 private:
  const Clock::time_point begin_ = Clock::now();
};

TEST(Lease, StaysCurrentWhileItIsRenewed) {
  const auto storage = memory_storage();
  const auto lease = Lease::take(storage, "claim", "owner", kPeriod, false);
  ASSERT_TRUE(lease);
  EXPECT_EQ(Lease::take(storage, "claim", "another", kPeriod, false), nullptr);
  std::this_thread::sleep_for(kPeriod + kPeriod / 2);
  EXPECT_TRUE(lease->is_current());
  lease->release();
  EXPECT_FALSE(storage->stat("claim"));
}

TEST(Lease, ARenewalThatArrivesWhenItHasLapsedDoesNotCount) {
  const auto storage = std::make_shared<LateStorage>();
  const auto lease = Lease::take(storage, "claim", "owner", kPeriod, false);
  ASSERT_TRUE(lease);
  while (storage->puts == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(lease->is_current()) << "another owner may have taken over before it arrived";
}

}  // namespace
}  // namespace dckpt::lease_test
