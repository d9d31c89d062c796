#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Memory for copies of the state, in blocks of one size, at most `budget` bytes (and at least a
/// block). Blocks are allocated when first needed and kept for the lifetime of the pool: the first
/// touch of fresh memory costs several times as much as a copy, so later saves should reuse blocks.
/// Not safe to use from several threads.
class StagingPool {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

  explicit StagingPool(std::uint64_t budget)
      : capacity_(budget < kBlockBytes ? 1 : static_cast<std::size_t>(budget / kBlockBytes)) {}

  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t available() const noexcept { return free_.size() + (capacity_ - blocks_.size()); }

  /// Of these, blocks that have been used before.
  std::size_t reusable() const noexcept { return free_.size(); }

  /// `count` blocks, which must be available.
  std::vector<std::byte*> acquire(std::size_t count);
  void release(std::byte* block) { free_.push_back(block); }

 private:
  std::size_t capacity_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::vector<std::byte*> free_;
};

}  // namespace dckpt
