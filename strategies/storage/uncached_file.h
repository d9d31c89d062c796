#pragma once

#include <cstdint>
#include <functional>

#include "mapping/base/bytes.h"

namespace dckpt {

/// A file that can be read without filling the page cache. A ReadableFile may implement it, for
/// long runs that are read once.
class UncachedFile {
 public:
  virtual ~UncachedFile() = default;
  /// Returns whether reading past the page cache is faster for this range: it is on a local disk
  /// and not in the page cache. False if that is unknown.
  virtual bool is_cold(std::uint64_t offset, std::uint64_t length) const = 0;
  /// Hands the range to `take`, in pieces from front to back that are valid only during the call.
  /// Takes 4 MiB of memory meanwhile. Returns false, with nothing handed over, if it cannot be
  /// done. Throws as ReadableFile::read does, and what `take` throws.
  virtual bool read_past_cache(std::uint64_t offset, std::uint64_t length,
                               const std::function<void(ByteView)>& take) const = 0;
};

}  // namespace dckpt
