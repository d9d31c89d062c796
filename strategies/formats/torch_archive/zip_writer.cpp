#include "strategies/formats/torch_archive/zip_writer.h"

#include <bit>
#include <cstring>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/formats/torch_archive/zip_format.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxAlignment = 32768;  // the length of the padding has 16 bits
constexpr std::size_t kMaxName = 1024;
constexpr std::size_t kEntryCrc = 16;  // offset of the CRC in a directory entry

constexpr bool needs_zip64(std::uint64_t value) noexcept {
  return value >= zip::kMarker32;
}
constexpr std::uint32_t field32(std::uint64_t value) noexcept {
  return needs_zip64(value) ? zip::kMarker32 : static_cast<std::uint32_t>(value);
}

/// Appends those of the sizes and the offset that do not fit into 32 bits as one extra field;
/// nothing if all fit. Torch also writes it in the local header, with 0 for the stored size, which
/// its writer does not know yet.
void append_zip64_extra(std::uint64_t size, std::uint64_t stored_size, std::uint64_t offset,
                        Bytes& out) {
  const auto length =
      static_cast<std::uint16_t>((needs_zip64(size) ? 16 : 0) + (needs_zip64(offset) ? 8 : 0));
  if (length == 0) return;
  append_le(out, zip::kZip64Extra);
  append_le(out, length);
  if (needs_zip64(size)) {
    append_le(out, size);
    append_le(out, stored_size);
  }
  if (needs_zip64(offset)) append_le(out, offset);
}

void append_text(std::string_view text, Bytes& out) {
  const ByteView bytes = as_bytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

void ZipWriter::begin_member(std::string_view name, std::uint64_t size, Bytes& out,
                             std::uint64_t alignment) {
  if (name.empty() || name.size() > kMaxName)
    throw_error(ErrorCode::kInvalidArgument,
                "cannot write a zip member with the name " + quote(name));
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment) {
    throw_error(ErrorCode::kInvalidArgument,
                "cannot align a zip member to {} bytes: expected a power of two up to 32768",
                alignment);
  }
  const auto flags = static_cast<std::uint16_t>(
      zip::kFlagUtf8 |
      (size > 0 ? zip::kFlagDescriptor : 0));  // torch writes no descriptor for empty data
  const std::uint64_t header = position_;
  position_ += append_local_header(name, size, flags, alignment, out);
  append_entry(name, size, flags, header);
  size_ = size;
  zip64_ = needs_zip64(size) || needs_zip64(header);
  ++count_;
}

std::uint64_t ZipWriter::append_local_header(std::string_view name, std::uint64_t size,
                                             std::uint16_t flags, std::uint64_t alignment,
                                             Bytes& out) const {
  Bytes zip64;
  append_zip64_extra(size, 0, position_, zip64);
  const std::uint64_t unpadded = options_.file_offset + position_ + zip::kLocalSize + name.size() +
                                 zip64.size() + zip::kExtraHeaderSize;
  const auto padding = static_cast<std::uint16_t>((alignment - unpadded % alignment) % alignment);

  append_le(out, zip::kLocalSignature);
  append_le(out, std::uint16_t{0});  // version needed: torch writes none
  append_le(out, flags);
  append_le(out, zip::kMethodStored);
  append_le(out, std::uint32_t{0});  // time and date: none, so that equal content gives equal bytes
  append_le(out, std::uint32_t{0});  // CRC and sizes: in the descriptor
  append_le(out, std::uint32_t{0});
  append_le(out, std::uint32_t{0});
  append_le(out, static_cast<std::uint16_t>(name.size()));
  append_le(out, static_cast<std::uint16_t>(zip64.size() + zip::kExtraHeaderSize + padding));
  append_text(name, out);
  out.insert(out.end(), zip64.begin(), zip64.end());
  append_le(out, zip::kPaddingExtra);
  append_le(out, padding);
  out.insert(out.end(), padding, std::byte{'Z'});
  return zip::kLocalSize + name.size() + zip64.size() + zip::kExtraHeaderSize + padding;
}

void ZipWriter::append_entry(std::string_view name, std::uint64_t size, std::uint16_t flags,
                             std::uint64_t header) {
  Bytes zip64;
  append_zip64_extra(size, size, header, zip64);
  entry_ = directory_.size();
  append_le(directory_, zip::kEntrySignature);
  append_le(directory_, std::uint32_t{0});  // versions
  append_le(directory_, flags);
  append_le(directory_, zip::kMethodStored);
  append_le(directory_, std::uint32_t{0});  // time and date
  append_le(directory_, std::uint32_t{0});  // CRC: known at the end
  append_le(directory_, field32(size));
  append_le(directory_, field32(size));
  append_le(directory_, static_cast<std::uint16_t>(name.size()));
  append_le(directory_, static_cast<std::uint16_t>(zip64.size()));
  append_le(directory_, std::uint16_t{0});  // comment
  append_le(directory_, std::uint16_t{0});  // disk
  append_le(directory_, std::uint16_t{0});  // attributes
  append_le(directory_, std::uint32_t{0});
  append_le(directory_, field32(header));
  append_text(name, directory_);
  directory_.insert(directory_.end(), zip64.begin(), zip64.end());
}

void ZipWriter::end_member(std::uint32_t crc, Bytes& out) {
  position_ += size_;
  if (size_ == 0) return;
  if (!options_.crc) crc = 0;
  std::memcpy(directory_.data() + entry_ + kEntryCrc, &crc, sizeof crc);
  append_le(out, zip::kDescriptorSignature);
  append_le(out, crc);
  for (int copy = 0; copy < 2; ++copy) {
    if (zip64_) {
      append_le(out, size_);
    } else {
      append_le(out, static_cast<std::uint32_t>(size_));
    }
  }
  position_ += zip64_ ? zip::kDescriptor64Size : zip::kDescriptorSize;
}

void ZipWriter::add_member(std::string_view name, ByteView data, Bytes& out,
                           std::uint64_t alignment) {
  begin_member(name, data.size(), out, alignment);
  out.insert(out.end(), data.begin(), data.end());
  end_member(crc32(data), out);
}

void ZipWriter::add_first_member(std::string_view name, Bytes data, Bytes& out,
                                 std::uint64_t alignment) {
  const std::uint32_t crc = crc32(data);
  Bytes header = std::move(out);
  begin_member(name, data.size(), header, alignment);
  out = std::move(data);
  out.insert(out.begin(), header.begin(), header.end());
  end_member(crc, out);
}

void ZipWriter::finish(Bytes& out) {
  const std::uint64_t directory = position_;
  const std::uint64_t end64 = directory + directory_.size();
  const auto count16 =
      static_cast<std::uint16_t>(count_ < zip::kMarker16 ? count_ : zip::kMarker16);
  out.insert(out.end(), directory_.begin(), directory_.end());

  append_le(out, zip::kEnd64Signature);
  append_le(out, std::uint64_t{zip::kEnd64Size - 12});  // size of the rest of the record
  append_le(out, std::uint16_t{0x031e});                // made by: Unix, 3.0
  append_le(out, std::uint16_t{45});                    // needed: zip64
  append_le(out, std::uint64_t{0});                     // disks
  append_le(out, count_);
  append_le(out, count_);
  append_le(out, std::uint64_t{directory_.size()});
  append_le(out, directory);

  append_le(out, zip::kLocatorSignature);
  append_le(out, std::uint32_t{0});
  append_le(out, end64);
  append_le(out, std::uint32_t{1});

  append_le(out, zip::kEndSignature);
  append_le(out, std::uint32_t{0});  // disks
  append_le(out, count16);
  append_le(out, count16);
  append_le(out, field32(directory_.size()));
  append_le(out, field32(directory));
  append_le(out, std::uint16_t{0});  // comment
  position_ = end64 + zip::kEnd64Size + zip::kLocatorSize + zip::kEndSize;
}

}  // namespace dckpt
