#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/readable_file.h"
#include "strategies/formats/torch_archive/zip_directory.h"

namespace dckpt {

/// The directory of a zip archive that occupies [base, base + length) of a file. Opening reads the
/// end records and the central directory, never a member. Strict: archives that existing readers
/// interpret differently are refused (see the .cpp for the list), so that no second tool sees other
/// members or other bytes. Safe to use from several threads; the file must outlive it.
class ZipArchive : public ZipBytes {
 public:
  /// Throws CheckpointError (corrupt), or (unsupported) for archives in several parts, naming the
  /// file.
  ZipArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length);

  /// Returns the members in the order of the central directory.
  std::span<const ZipMember> members() const noexcept { return members_; }
  /// Finds a member by its exact name; null if there is none.
  const ZipMember* find(std::string_view name) const noexcept;
  /// False if every CRC of the archive is 0, which means that the writer did not compute them.
  bool has_crcs() const noexcept { return has_crcs_; }

  /// Returns the offset in the file of the member's first byte. Reads the local header and compares
  /// it with the directory. Throws (corrupt), or (unsupported) for compressed and encrypted
  /// members, naming the member.
  std::uint64_t data_offset(const ZipMember& member) const;

  /// Returns the member's bytes. Throws as data_offset does, and (corrupt) if it is larger than
  /// `limit`, or does not match the CRC in the archive.
  Bytes read(const ZipMember& member, std::uint64_t limit) const;

  /// Reads the member and compares its CRC and its data descriptor. Returns false if the archive
  /// has no CRCs. Throws (corrupt) if one differs.
  bool check(const ZipMember& member) const;

 private:
  void refuse_ambiguous_names();
  void refuse_overlaps();
  /// Throws (unsupported) for an encrypted or compressed member.
  void require_plain(const ZipMember& member) const;
  /// `extra` is the offset of the extra fields of the local header.
  void require_same_sizes(const ZipMember& member, ByteView header, std::uint64_t extra) const;
  [[noreturn]] void damaged(const ZipMember& member) const;

  std::uint64_t directory_offset_ = 0;
  std::vector<ZipMember> members_;
  std::vector<std::uint64_t> header_offsets_;  // sorted
  /// Positions of members, sorted without regard to case; empty if there are few members.
  std::vector<std::uint32_t> by_name_;
  bool has_crcs_ = false;
};

}  // namespace dckpt
