#include "strategies/device/page_locked_pool.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMostPieces = std::uint64_t{1} << 20;  // 4 TiB: no system has more to lock

// The destructor waits this long for copies that have not ended.
constexpr int kTimes = 100;
constexpr auto kPause = std::chrono::milliseconds(10);

}  // namespace

PageLockedPool::PageLockedPool(std::shared_ptr<DeviceRuntime> runtime, std::uint64_t limit)
    : runtime_(std::move(runtime)),
      limit_(static_cast<std::size_t>(
          std::clamp<std::uint64_t>(limit / kPieceBytes, 1, kMostPieces))) {
  // Room for all pieces: release() and abandon() do not allocate.
  free_.reserve(limit_);
  abandoned_.reserve(limit_);
}

PageLockedPool::~PageLockedPool() {
  for (int times = 0; times < kTimes; ++times) {
    reclaim();
    if (abandoned_.empty()) break;
    std::this_thread::sleep_for(kPause);
  }
  // A copy that hangs would overwrite the next content of the memory.
  const auto is_abandoned = [&](const std::byte* piece) {
    return std::ranges::any_of(abandoned_,
                               [&](const Abandoned& lost) { return lost.piece == piece; });
  };
  for (std::byte* const piece : page_locked_) {
    if (!is_abandoned(piece)) runtime_->free_page_locked(piece);
  }
  for (auto& piece : ordinary_) {
    if (is_abandoned(piece.get())) static_cast<void>(piece.release());
  }
}

std::byte* PageLockedPool::acquire(int device) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (std::byte* const piece = take(device)) return piece;
    if (abandoned_.size() == pieces_) {
      throw_error(ErrorCode::kUnavailable,
                  "all {} pieces of page-locked memory belong to {} copies that have not ended",
                  pieces_, runtime_->name());
    }
    // Abandoned pieces are checked now and then; nothing tells when they are free.
    released_.wait_for(lock, std::chrono::milliseconds(abandoned_.empty() ? 1000 : 10));
  }
}

std::byte* PageLockedPool::try_acquire(int device) {
  const std::lock_guard lock(mutex_);
  return take(device);
}

void PageLockedPool::release(std::byte* piece) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(piece);
  released_.notify_one();
}

void PageLockedPool::abandon(std::byte* piece,
                             std::shared_ptr<const CopyEvent> free_when) noexcept {
  const std::lock_guard lock(mutex_);
  abandoned_.push_back({piece, std::move(free_when)});
  released_.notify_all();
}

std::byte* PageLockedPool::take(int device) {
  if (free_.empty()) reclaim();
  if (free_.empty()) return pieces_ < limit_ ? allocate(device) : nullptr;
  std::byte* const piece = free_.back();
  free_.pop_back();
  return piece;
}

/// Returns null if there is no more, and some are in use.
std::byte* PageLockedPool::allocate(int device) {
  page_locked_.reserve(limit_);
  if (std::byte* const memory = runtime_->allocate_page_locked(device, kPieceBytes)) {
    page_locked_.push_back(memory);
    ++pieces_;
    return memory;
  }
  log(LogLevel::kWarning,
      str_format("{} page-locked memory is exhausted: copies to and from devices use {} of it "
                 "instead of {}{}",
                 runtime_->name(), human_bytes(pieces_ * kPieceBytes),
                 human_bytes(limit_ * kPieceBytes),
                 pieces_ == 0 ? ", and ordinary memory, which is slower" : ""));
  limit_ = std::max<std::size_t>(pieces_, 1);
  if (pieces_ > 0) return nullptr;
  ordinary_.push_back(std::make_unique_for_overwrite<std::byte[]>(kPieceBytes));
  ++pieces_;
  return ordinary_.back().get();
}

void PageLockedPool::reclaim() {
  std::erase_if(abandoned_, [&](const Abandoned& lost) {
    if (!has_ended(*lost.free_when)) return false;  // already reported to the copy's caller
    free_.push_back(lost.piece);
    return true;
  });
}

}  // namespace dckpt
