#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "strategies/device/copy_event.h"
#include "strategies/device/runtime.h"

namespace dckpt {

/// Page-locked memory in pieces of one size, within a limit, which all saves and loads of a process
/// share and reuse. It has at least one piece: where the system has no page-locked memory, that is
/// ordinary memory, with which copies are slower. Safe to use from several threads.
class PageLockedPool {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  PageLockedPool(std::shared_ptr<DeviceRuntime> runtime, std::uint64_t limit);
  /// Waits up to a second for abandoned pieces; those whose copies have not ended then are never
  /// freed.
  ~PageLockedPool();
  PageLockedPool(const PageLockedPool&) = delete;
  PageLockedPool& operator=(const PageLockedPool&) = delete;

  /// Waits until a piece is free, for copies of a device. The caller must hold no other piece.
  std::byte* acquire(int device);
  /// Returns null if none is free now.
  std::byte* try_acquire(int device);
  void release(std::byte* piece) noexcept;
  /// Takes back a piece that a copy may still use. It is free once the event is reached.
  void abandon(std::byte* piece, std::shared_ptr<const CopyEvent> free_when) noexcept;

 private:
  struct Abandoned {
    std::byte* piece;
    std::shared_ptr<const CopyEvent> free_when;
  };

  std::byte* take(int device);
  std::byte* allocate(int device);
  void reclaim();

  const std::shared_ptr<DeviceRuntime> runtime_;
  std::mutex mutex_;
  std::condition_variable released_;
  std::size_t limit_;  ///< in pieces
  std::size_t pieces_ = 0;
  std::vector<std::byte*> free_;
  std::vector<std::byte*> page_locked_;
  std::vector<std::unique_ptr<std::byte[]>> ordinary_;
  std::vector<Abandoned> abandoned_;
};

}  // namespace dckpt
