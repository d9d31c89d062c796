#include "strategies/storage/lease.h"

#include <ctime>

#include <algorithm>
#include <exception>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/warn_if_possible.h"

namespace dckpt {

std::int64_t storage_time(Storage& storage, const std::string& probe) {
  storage.put(probe, {});
  const auto found = storage.stat(probe);
  storage.remove_all(probe);
  return found ? found->modified : 0;
}

std::unique_ptr<Lease> Lease::take(std::shared_ptr<Storage> storage, std::string name,
                                   std::string owner, Period period, bool sync) {
  if (storage->stat(name)) return nullptr;
  // Its period begins before the file has a time.
  std::unique_ptr<Lease> lease(
      new Lease(std::move(storage), std::move(name), std::move(owner), period));
  try {
    const auto file = lease->storage_->create(lease->name_);
    file->append(as_bytes(lease->owner_));
    if (sync) file->sync();
    file->close();
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kAlreadyExists) throw;  // another owner was faster
    return nullptr;
  }
  lease->thread_ =
      std::jthread([held = lease.get()](const std::stop_token& stop) { held->renew(stop); });
  return lease;
}

std::optional<Lease::Period> Lease::age(Storage& storage, const std::string& name,
                                        const std::string& probe) {
  const std::int64_t now = storage_time(storage, probe);
  const auto lease = storage.stat(name);
  if (now == 0 || !lease || lease->modified == 0) return std::nullopt;
  const std::chrono::nanoseconds age(std::max<std::int64_t>(now - lease->modified, 0));
  return std::chrono::duration_cast<Period>(age);
}

Lease::Clock::time_point Lease::Clock::now() noexcept {
#ifdef CLOCK_BOOTTIME
  constexpr clockid_t kClock = CLOCK_BOOTTIME;
#else
  constexpr clockid_t kClock = CLOCK_MONOTONIC;
#endif
  timespec time{};
  (void)clock_gettime(kClock, &time);
  return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

Lease::Lease(std::shared_ptr<Storage> storage, std::string name, std::string owner, Period period)
    : storage_(std::move(storage)),
      name_(std::move(name)),
      owner_(std::move(owner)),
      period_(period),
      renewed_(Clock::now()) {}

Lease::~Lease() {
  end_renewing();
}

bool Lease::is_current() const {
  const std::lock_guard lock(mutex_);
  return !has_lapsed_by(Clock::now());
}

void Lease::release() {
  end_renewing();
  storage_->remove_all(name_);
}

void Lease::end_renewing() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void Lease::renew(const std::stop_token& stop) {
  bool warned = false;
  for (;;) {
    Clock::time_point begun;  // the one time for both, since the thread may be stopped anywhere
    {
      std::unique_lock lock(mutex_);
      stopped_.wait_for(lock, stop, period_ / 4, [] { return false; });
      if (stop.stop_requested()) return;
      begun = Clock::now();
      if (has_lapsed_by(begun)) return;  // another owner may rely on its end
    }
    try {
      storage_->put(name_, as_bytes(owner_));
      const std::lock_guard lock(mutex_);
      if (has_lapsed_by(Clock::now())) return;  // it may have come too late
      renewed_ = begun;
    } catch (const std::exception& error) {
      if (std::exchange(warned, true)) continue;
      warn_if_possible([&] {
        return str_format("cannot renew {}, which shows other jobs that this one still writes: {}",
                          quote(storage_->display_path(name_)), error.what());
      });
    }
  }
}

}  // namespace dckpt
