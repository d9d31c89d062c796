#pragma once

#include <cstddef>
#include <memory>

#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed. The common parts of reading and writing past the
// page cache (O_DIRECT).
namespace dckpt::posix {

/// The strictest alignment of offsets, lengths and memory that disks and file systems require.
inline constexpr std::size_t kDirectAlignment = 4096;

/// Returns true if direct I/O is known to be the faster way between memory and the disk of this
/// file.
bool profits_from_direct(const Fd& fd) noexcept;

/// Memory for reading from or writing to a disk past the page cache. It consists of huge pages, of
/// which a disk takes more in one request.
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
  /// Returns a free block, or a new one. The process keeps a few returned blocks: finding huge
  /// pages may take long.
  static Taken take();

 private:
  void* mapping_;
  std::byte* memory_;
};

}  // namespace dckpt::posix
