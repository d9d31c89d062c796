#pragma once

#include <cstddef>
#include <cstdint>

/// The records of a zip archive (PKWARE APPNOTE 4.3): signatures, fixed sizes, and the offsets of
/// the fields that are used. All numbers are little-endian.
///
///     local header  name  extra  data  [descriptor]     one for each member
///     directory entry  name  extra  comment             one for each member: the central directory
///     [zip64 end record  zip64 locator]  end record
namespace dckpt::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;       // "PK\3\4"
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;  // "PK\7\8"
inline constexpr std::uint32_t kEntrySignature = 0x02014b50;       // "PK\1\2"
inline constexpr std::uint32_t kEndSignature = 0x06054b50;         // "PK\5\6"
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;       // "PK\6\6"
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;     // "PK\6\7"

inline constexpr std::size_t kLocalSize = 30;
inline constexpr std::size_t kEntrySize = 46;
inline constexpr std::size_t kEndSize = 22;
inline constexpr std::size_t kEnd64Size = 56;
inline constexpr std::size_t kLocatorSize = 20;
inline constexpr std::size_t kDescriptorSize = 16;  // with its signature
inline constexpr std::size_t kDescriptor64Size = 24;
inline constexpr std::size_t kExtraHeaderSize = 4;  // id, length

inline constexpr std::uint16_t kMarker16 = 0xffff;  // "see the zip64 record"
inline constexpr std::uint32_t kMarker32 = 0xffffffff;
inline constexpr std::uint16_t kZip64Extra = 1;
inline constexpr std::uint16_t kPaddingExtra =
    0x4246;  // "FB": torch fills it with 'Z' to align the data

inline constexpr std::uint16_t kFlagEncrypted = 0x0001;
inline constexpr std::uint16_t kFlagDescriptor = 0x0008;  // CRC and sizes follow the data
inline constexpr std::uint16_t kFlagStrongEncryption = 0x0040;
inline constexpr std::uint16_t kFlagUtf8 = 0x0800;
inline constexpr std::uint16_t kFlagMaskedHeader = 0x2000;
inline constexpr std::uint16_t kFlagsLevel =
    0x0006;  // says how hard a compressor tried: no matter here

inline constexpr std::uint16_t kMethodStored = 0;

}  // namespace dckpt::zip
