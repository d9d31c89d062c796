#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// The bytes of a zip archive that occupies [base, base + length) of a file. Its ends, where small
/// members and the directory lie, are read at once. Offsets count from the first byte of the
/// archive.
class ZipBytes {
 public:
  /// Throws CheckpointError (corrupt) if the file is too short.
  ZipBytes(const ReadableFile& file, std::uint64_t base, std::uint64_t length);
  ZipBytes(ZipBytes&&) = default;  // views stay valid
  ZipBytes& operator=(ZipBytes&&) = default;

  const ReadableFile& file() const noexcept { return *file_; }
  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t length() const noexcept { return length_; }
  /// Returns a view of bytes that have been read already, or of `scratch`, which then receives the
  /// bytes. They must lie inside the archive.
  ByteView window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const;
  /// Reads everything from `offset` on; windows view these bytes for the lifetime of this object.
  void keep_from(std::uint64_t offset);

  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint64_t offset) const;
  [[noreturn]] void corrupt(const std::string& message, std::uint64_t offset) const {
    fail(ErrorCode::kCorrupt, message, offset);
  }

 private:
  const ReadableFile* file_;
  std::uint64_t base_;
  std::uint64_t length_;
  Bytes head_;  // the first bytes, with small archives and the headers of large ones
  Bytes tail_;  // the last bytes, with the directory
  std::uint64_t tail_offset_ = 0;
};

}  // namespace dckpt
