#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// Limits against hostile archives; torch stays far below them.
struct ZipLimits {
  static constexpr std::uint64_t kMaxDirectoryBytes = std::uint64_t{64}
                                                      << 20;  ///< about 800 000 members
  static constexpr std::size_t kMaxNameBytes = 1024;
};

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

/// A member as the central directory describes it. Offsets count from the first byte of the
/// archive.
struct ZipMember {
  std::string_view name;            ///< points into the bytes of the archive
  std::uint64_t header_offset = 0;  ///< offset of the local header
  std::uint64_t entry_offset = 0;   ///< offset of the entry in the central directory
  std::uint64_t size = 0;           ///< size of the stored data
  std::uint32_t crc = 0;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;  ///< 0 = stored, the only method that can be read
};

struct ZipDirectory {
  std::uint64_t offset = 0;        ///< offset of the central directory
  std::vector<ZipMember> members;  ///< in the directory's order
};

/// Reads the end records and the central directory, which `archive` keeps from then on. Throws
/// CheckpointError (corrupt), or (unsupported) for archives in several parts.
ZipDirectory read_zip_directory(ZipBytes& archive);

/// Returns the zip64 field of an extra area; empty if there is none. The second result is false if
/// the area is not a sequence of fields or has two zip64 fields.
std::pair<ByteView, bool> find_zip64(ByteView extra) noexcept;

}  // namespace dckpt
