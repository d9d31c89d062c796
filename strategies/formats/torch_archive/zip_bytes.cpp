#include "strategies/formats/torch_archive/zip_bytes.h"

#include "mapping/base/checked.h"
#include "mapping/base/format.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kHeadBytes =
    4096;  // holds all but the payload of a tensor blob, even one padded to pages
constexpr std::uint64_t kTailBytes =
    2048;  // holds the directory of a tensor blob and the two members after the payload
constexpr std::uint64_t kWholeBytes = 16384;  // archives up to this size are read at once

}  // namespace

ZipBytes::ZipBytes(const ReadableFile& file, std::uint64_t base, std::uint64_t length)
    : file_(&file), base_(base), length_(length) {
  if (!range_fits(base, length, file.size())) {
    fail(ErrorCode::kCorrupt,
         str_format("cannot read a zip archive of {} bytes: the file has only {} bytes; it may "
                    "have been truncated",
                    length, file.size()),
         0);
  }
  const std::uint64_t head = length <= kWholeBytes ? length : kHeadBytes;
  head_.resize(head);
  file.read(base, head_);
  if (head < length) {
    tail_.resize(kTailBytes);
    tail_offset_ = length - kTailBytes;
    file.read(base + tail_offset_, tail_);
  } else {
    tail_offset_ = length;
  }
}

void ZipBytes::fail(ErrorCode code, const std::string& message, std::uint64_t offset) const {
  throw CheckpointError(code, message, {.file = file_->name(), .offset = base_ + offset});
}

ByteView ZipBytes::window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const {
  if (range_fits(offset, size, head_.size())) return ByteView(head_).subspan(offset, size);
  if (offset >= tail_offset_ && range_fits(offset - tail_offset_, size, tail_.size()))
    return ByteView(tail_).subspan(offset - tail_offset_, size);
  scratch.resize(size);
  file_->read(base_ + offset, scratch);
  return scratch;
}

void ZipBytes::keep_from(std::uint64_t offset) {
  if (head_.size() == length_ || offset >= tail_offset_) return;
  tail_.resize(length_ - offset);
  tail_offset_ = offset;
  file_->read(base_ + tail_offset_, tail_);
}

}  // namespace dckpt
