#include "strategies/storage/lease.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "strategies/storage/forwarding.h"
#include "strategies/storage/memory.h"

namespace dckpt::lease_test {
namespace {

constexpr Lease::Period kPeriod{400};

/// Files that are put arrive late: the first renewal, which begins after a quarter of a period,
/// when the period is over.
class LateStorage final : public ForwardingStorage {
 public:
  LateStorage() : ForwardingStorage(memory_storage()) {}
  void put(const std::string& name, ByteView content) override {
    std::this_thread::sleep_for(kPeriod * 7 / 8);
    storage_->put(name, content);
    ++puts;
  }

  std::atomic<int> puts{0};
};

TEST(Lease, HasOneOwnerUntilItIsReleased) {
  const auto storage = memory_storage();
  const auto lease = Lease::take(storage, "claim", "owner", std::chrono::minutes(1), false);
  ASSERT_TRUE(lease);
  EXPECT_TRUE(lease->is_current());
  EXPECT_EQ(Lease::take(storage, "claim", "another", std::chrono::minutes(1), false), nullptr);
  lease->release();
  EXPECT_FALSE(storage->stat("claim"));
}

TEST(Lease, ARenewalThatArrivesWhenItHasLapsedDoesNotCount) {
  const auto storage = std::make_shared<LateStorage>();
  const auto lease = Lease::take(storage, "claim", "owner", kPeriod, false);
  ASSERT_TRUE(lease);
  // A thread that is late itself does not even begin to renew.
  for (int wait = 0; storage->puts == 0 && wait < 5000; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(lease->is_current()) << "another owner may have taken over before it arrived";
}

}  // namespace
}  // namespace dckpt::lease_test
