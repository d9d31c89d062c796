#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dckpt {

/// A file whose bytes are available in memory without reading them. A ReadableFile may implement
/// it, for many short pieces that lie apart from each other.
class MappableFile {
 public:
  virtual ~MappableFile() = default;
  /// Calls `copy` with `length` bytes of the file from `offset` on, which are valid during the
  /// call. Returns false if not all of them were available, for example because the file has
  /// shrunk: the copied bytes are then worthless, and read() reports the reason. `copy` must do
  /// nothing but copy.
  virtual bool with_mapped(std::uint64_t offset, std::uint64_t length,
                           const std::function<void(const std::byte*)>& copy) const = 0;
};

}  // namespace dckpt
