#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dckpt {

/// A file whose bytes can be had in memory without reading them. An optional power of a
/// ReadableFile, for many short pieces that lie apart from each other.
class MappableFile {
 public:
  virtual ~MappableFile() = default;
  /// Calls `copy` with the file's bytes from `offset` on, `length` of them, which are there during
  /// the call. Returns false if they could not be had, or not all of them, as when the file has
  /// shrunk: then what was copied is worth nothing, and read() tells why. `copy` must do nothing
  /// but copy.
  virtual bool with_mapped(std::uint64_t offset, std::uint64_t length,
                           const std::function<void(const std::byte*)>& copy) const = 0;
};

}  // namespace dckpt
