#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "strategies/formats/torch_archive/zip_bytes.h"

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
