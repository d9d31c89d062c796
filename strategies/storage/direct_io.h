#pragma once

#include <cstddef>
#include <memory>

#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed. What reading and writing past the page cache
// (O_DIRECT) have in common.
namespace dckpt::posix {

/// Of offsets, lengths and memory: what disks and file systems ask for at most.
inline constexpr std::size_t kDirectAlignment = 4096;

/// Whether it is known to be the faster way between memory and the disk of this file.
bool profits_from_direct(const Fd& fd) noexcept;

/// Memory that a disk is read into or written from past the page cache: in huge pages, of which it
/// takes more in one request.
class HugeBlock {
 public:
  static constexpr std::size_t kSize = std::size_t{4} << 20;

  /// Throws std::bad_alloc.
  HugeBlock();
  HugeBlock(const HugeBlock&) = delete;
  HugeBlock& operator=(const HugeBlock&) = delete;
  ~HugeBlock();

  std::byte* memory() const noexcept { return memory_; }

  struct GiveBack {
    void operator()(HugeBlock* block) const noexcept;
  };
  using Taken = std::unique_ptr<HugeBlock, GiveBack>;
  /// One that is free, or a new one. The process keeps a few of those that are given back: huge
  /// pages may take long to be found.
  static Taken take();

 private:
  void* mapping_;
  std::byte* memory_;
};

}  // namespace dckpt::posix
