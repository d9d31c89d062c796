#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

/// A member as the central directory describes it. Offsets count from the first byte of the
/// archive.
struct ZipMember {
  std::string_view name;            ///< points into the archive object
  std::uint64_t header_offset = 0;  ///< of the local header
  std::uint64_t entry_offset = 0;   ///< of the entry in the central directory
  std::uint64_t size = 0;           ///< of the stored data
  std::uint32_t crc = 0;
  std::uint16_t flags = 0;
  std::uint16_t method = 0;  ///< 0 = stored, the only one that can be read
};

/// The directory of a zip archive that occupies [base, base + length) of a file. Opening reads the
/// end records and the central directory, never a member. Strict: what readers of the world
/// understand differently is refused (see the .cpp for the list), so that no second tool sees other
/// members or other bytes. Safe to use from several threads; the file must outlive it.
class ZipArchive {
 public:
  /// Throws CheckpointError (corrupt), or (unsupported) for archives in several parts, naming the
  /// file.
  ZipArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length);

  ZipArchive(ZipArchive&&) = default;
  ZipArchive& operator=(ZipArchive&&) = default;

  const ReadableFile& file() const noexcept { return *file_; }
  std::uint64_t base() const noexcept { return base_; }
  /// In the order of the central directory.
  std::span<const ZipMember> members() const noexcept { return members_; }
  /// Exact name; null if there is none.
  const ZipMember* find(std::string_view name) const noexcept;
  /// False if every CRC of the archive is 0: then the writer did not compute them.
  bool has_crcs() const noexcept { return has_crcs_; }

  std::uint64_t length() const noexcept { return length_; }
  /// Bytes of the archive: a view of what has been read already, or of `scratch`, which then
  /// receives them. They must lie inside.
  ByteView window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const;

  /// Offset in the file of the member's first byte. Reads the local header and compares it with the
  /// directory. Throws (corrupt), or (unsupported) for compressed and encrypted members, naming the
  /// member.
  std::uint64_t data_offset(const ZipMember& member) const;

  /// The member's bytes; throws as data_offset does, and (corrupt) if it is larger than `limit`, or
  /// does not match the CRC in the archive.
  Bytes read(const ZipMember& member, std::uint64_t limit) const;

  /// Reads the member and compares its CRC and its data descriptor. Returns false if the archive
  /// has no CRCs. Throws (corrupt) if one differs.
  bool check(const ZipMember& member) const;

 private:
  struct End;  // what the end records say
  End read_end();
  /// Of the zip64 records before the classic one, if there are any.
  std::optional<End> read_end64(std::uint64_t end_offset, const End& classic);
  void read_directory(const End& end);
  ZipMember read_entry(ByteView entry, std::uint64_t entry_offset) const;
  void refuse_ambiguous_names();
  void refuse_overlaps();
  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint64_t offset) const;
  [[noreturn]] void corrupt(const std::string& message, std::uint64_t offset) const {
    fail(ErrorCode::kCorrupt, message, offset);
  }

  [[noreturn]] void damaged(const ZipMember& member) const;

  const ReadableFile* file_;
  std::uint64_t base_;
  std::uint64_t length_;
  Bytes head_;  // the first bytes, where small archives and the headers of large ones lie
  Bytes tail_;  // the last bytes, the directory among them
  std::uint64_t tail_offset_ = 0;
  std::uint64_t directory_offset_ = 0;
  std::vector<ZipMember> members_;
  std::vector<std::uint64_t> header_offsets_;  // sorted
  std::vector<std::uint32_t>
      by_name_;  // positions in members_, sorted without regard to case; only when there are many
  bool has_crcs_ = false;
};

}  // namespace dckpt
