#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// A zip archive that occupies [base, base + length) of a file, as bytes. Its ends, where small
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
  /// A view of what has been read already, or of `scratch`, which then receives the bytes. They
  /// must lie inside.
  ByteView window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const;
  /// Reads everything from `offset` on, which windows then view as long as this lives.
  void keep_from(std::uint64_t offset);

  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint64_t offset) const;
  [[noreturn]] void corrupt(const std::string& message, std::uint64_t offset) const {
    fail(ErrorCode::kCorrupt, message, offset);
  }

 private:
  const ReadableFile* file_;
  std::uint64_t base_;
  std::uint64_t length_;
  Bytes head_;  // the first bytes, where small archives and the headers of large ones lie
  Bytes tail_;  // the last bytes, the directory among them
  std::uint64_t tail_offset_ = 0;
};

}  // namespace dckpt
