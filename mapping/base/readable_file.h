#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

/// An open file to read from; safe to use from several threads at once.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual const std::string& name()
      const noexcept = 0;  ///< the path as the user would spell it, for messages
  virtual std::uint64_t size() const noexcept = 0;  ///< as of its opening
  /// Fills `into` from `offset`. Throws CheckpointError: (corrupt) if the range is not inside the
  /// file, (io) with errno's text otherwise.
  virtual void read(std::uint64_t offset, MutableByteView into) const = 0;
  /// Hints that the range will be read soon. May do nothing.
  virtual void prefetch(std::uint64_t offset, std::uint64_t length) const = 0;
};

/// Reads the whole content; throws (corrupt) if it is larger than `limit`.
Bytes read_file(const ReadableFile& file, std::uint64_t limit);

}  // namespace dckpt
