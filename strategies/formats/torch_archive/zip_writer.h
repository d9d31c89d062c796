#pragma once

#include <cstdint>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt {

struct ZipWriterOptions {
  /// The offset of the archive in its file; data is aligned in the file.
  std::uint64_t file_offset = 0;
  bool crc = true;  ///< false: all CRCs are written as 0, "not computed"
};

/// Writes a zip archive of stored members as torch does: data aligned by a padding field in the
/// local header, CRC and sizes in a descriptor after the data and in the directory, zip64 fields
/// where a size or an offset needs them, zip64 end records always. The writer only makes the
/// records: it appends them to `out`, and the caller sends `out` and the data. Thus data is never
/// copied, a CRC is needed only after its data, and the size of an archive is known by making its
/// records. A copy of a writer continues on its own.
class ZipWriter {
 public:
  explicit ZipWriter(const ZipWriterOptions& options = {}) : options_(options) {}

  /// Appends the records before `size` bytes of data, whose offset in the file will be a multiple
  /// of `alignment` (1 to 32 KiB). Throws CheckpointError (invalid argument) for an empty or too
  /// long name and for an alignment that is not a power of two.
  void begin_member(std::string_view name, std::uint64_t size, Bytes& out,
                    std::uint64_t alignment = 64);
  /// Appends the record after the data.
  void end_member(std::uint32_t crc, Bytes& out);
  /// Appends a member with its data.
  void add_member(std::string_view name, ByteView data, Bytes& out, std::uint64_t alignment = 64);
  /// Does the same for the first member, whose data becomes `out` without a copy.
  void add_first_member(std::string_view name, Bytes data, Bytes& out,
                        std::uint64_t alignment = 64);
  /// Appends the directory and the end records. No member may follow.
  void finish(Bytes& out);

  /// Returns the bytes of the archive so far, data included.
  std::uint64_t position() const noexcept { return position_; }
  bool has_crcs() const noexcept { return options_.crc; }

 private:
  /// Returns the size of the header.
  std::uint64_t append_local_header(std::string_view name, std::uint64_t size, std::uint16_t flags,
                                    std::uint64_t alignment, Bytes& out) const;
  /// Appends an entry of the directory.
  void append_entry(std::string_view name, std::uint64_t size, std::uint16_t flags,
                    std::uint64_t header_offset);

  ZipWriterOptions options_;
  std::uint64_t position_ = 0;
  std::uint64_t count_ = 0;
  Bytes directory_;
  // The member begun last:
  std::size_t entry_ = 0;  // position of its entry in directory_
  std::uint64_t size_ = 0;
  bool zip64_ = false;
};

}  // namespace dckpt
