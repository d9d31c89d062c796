#pragma once

#include <cstdint>
#include <functional>

#include "mapping/base/bytes.h"

namespace dckpt {

/// A file that can be read without filling the page cache. An optional power of a ReadableFile, for
/// long runs that are read once.
class UncachedFile {
 public:
  virtual ~UncachedFile() = default;
  /// Whether that is the faster way to this range: a local disk has it, and the page cache has not.
  /// False if that cannot be told.
  virtual bool is_cold(std::uint64_t offset, std::uint64_t length) const = 0;
  /// Hands the range to `take`, in pieces from front to back, each of which is there during the
  /// call only. Takes 4 MiB of memory meanwhile. Returns false, with nothing handed over, where it
  /// cannot be done. Throws as ReadableFile::read, and what `take` throws.
  virtual bool read_past_cache(std::uint64_t offset, std::uint64_t length,
                               const std::function<void(ByteView)>& take) const = 0;
};

}  // namespace dckpt
