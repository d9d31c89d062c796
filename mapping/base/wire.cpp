#include "mapping/base/wire.h"

#include "mapping/base/error.h"

namespace dckpt {

void WireWriter::number(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<std::byte>(value | 0x80));
  out_.push_back(static_cast<std::byte>(value));
}

void WireWriter::text(std::string_view text) {
  number(text.size());
  const ByteView view = as_bytes(text);
  out_.insert(out_.end(), view.begin(), view.end());
}

void WireReader::malformed(std::string_view why) const {
  throw_error(ErrorCode::kCorrupt, {.offset = at_}, what_ + " is malformed: " + std::string(why));
}

std::uint64_t WireReader::number() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == bytes_.size()) malformed("it ends too early");
    const auto byte = static_cast<std::uint64_t>(bytes_[at_++]);
    const std::uint64_t part = byte & 0x7F;
    if (shift == 63 && part > 1) break;
    value |= part << shift;
    if ((byte & 0x80) == 0) return value;
  }
  malformed("a number does not fit in 64 bits");
}

std::uint64_t WireReader::number(std::uint64_t limit) {
  const std::uint64_t value = number();
  if (value > limit) malformed(str_format("the number {} exceeds its limit {}", value, limit));
  return value;
}

std::int64_t WireReader::signed_number() {
  return static_cast<std::int64_t>(number(static_cast<std::uint64_t>(INT64_MAX)));
}

std::size_t WireReader::count() {
  const std::uint64_t value = number();
  if (value > bytes_.size() - at_)
    malformed(
        str_format("a count of {} exceeds the {} bytes that are left", value, bytes_.size() - at_));
  return value;
}

std::string WireReader::text() {
  const std::size_t length = count();
  const std::string_view view = as_text(bytes_.subspan(at_, length));
  at_ += length;
  return std::string(view);
}

void WireReader::finish() const {
  if (!at_end()) malformed("bytes follow the last item");
}

}  // namespace dckpt
