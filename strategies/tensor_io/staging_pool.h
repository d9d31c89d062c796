#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

class CopyEvent;
class DeviceRuntime;

/// Memory for copies of the state, in blocks of one size, at most `budget` bytes (and at least a
/// block). It is allocated when first needed, in slabs of many blocks, and kept for the lifetime of
/// the pool: the first touch of fresh memory costs several times as much as a copy, so later saves
/// should reuse blocks. Not safe to use from several threads.
class StagingPool {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

  explicit StagingPool(std::uint64_t budget)
      : capacity_(budget < kBlockBytes ? 1 : static_cast<std::size_t>(budget / kBlockBytes)) {}
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// Makes new blocks page-locked memory, to which a registered device copies fastest, as far as it
  /// is available. Frees the other blocks; none may be in use.
  void lock_pages_for(const Device& device);

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t available() const noexcept { return free_.size() + (capacity_ - allocated_); }

  /// Returns `count` blocks, which must be available. Throws CheckpointError (io) of a device.
  std::vector<std::byte*> acquire(std::size_t count);
  void release(std::byte* block) { free_.push_back(block); }
  /// Takes back a block that copies may still use. It is free once all events are reached.
  void abandon(std::byte* block, std::vector<std::shared_ptr<const CopyEvent>> free_when);
  /// Frees the abandoned blocks whose events have been reached.
  void reclaim();

 private:
  struct Slab {
    std::unique_ptr<std::byte, std::function<void(std::byte*)>> memory;
    std::size_t blocks;
  };
  struct Abandoned {
    std::byte* block;
    std::vector<std::shared_ptr<const CopyEvent>> free_when;
  };
  Slab allocate(std::size_t blocks);
  void grow(std::size_t wanted);
  bool is_abandoned(const Slab& slab) const;

  std::size_t capacity_;
  std::shared_ptr<DeviceRuntime> runtime_;  ///< allocates page-locked blocks; may be null
  int device_ = 0;
  bool exhausted_ = false;     ///< no page-locked memory is left
  std::size_t allocated_ = 0;  ///< number of blocks
  std::vector<Slab> slabs_;
  std::vector<std::byte*> free_;
  std::vector<Abandoned> abandoned_;
};

}  // namespace dckpt
