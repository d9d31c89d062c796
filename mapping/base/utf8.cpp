#include "mapping/base/utf8.h"

#include <algorithm>
#include <cstring>

namespace dckpt {

Utf8Sequence decode_utf8(std::string_view text, Surrogates surrogates) noexcept {
  if (text.empty()) return {};
  const auto byte = [&](std::size_t i) {
    return std::uint32_t{static_cast<std::uint8_t>(text[i])};
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const std::size_t length = lead < 0xC2   ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return {};
  std::uint32_t code_point = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  const bool overlong =
      (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (overlong || code_point > 0x10FFFF || (surrogate && surrogates == Surrogates::kRefuse))
    return {};
  return {length, code_point};
}

bool is_utf8(std::string_view text, Surrogates surrogates) noexcept {
  while (!text.empty()) {
    for (std::uint64_t word; text.size() >= sizeof word; text.remove_prefix(sizeof word)) {
      std::memcpy(&word, text.data(), sizeof word);
      if ((word & 0x8080808080808080) != 0) break;  // else eight bytes of ASCII
    }
    if (text.empty()) break;
    const std::size_t length = decode_utf8(text, surrogates).length;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::optional<Bytes> encode_latin1(std::string_view utf8) {
  Bytes out;
  out.reserve(static_cast<std::size_t>(std::ranges::count_if(
      utf8, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; })));
  while (!utf8.empty()) {
    const auto [length, code_point] = decode_utf8(utf8, Surrogates::kPass);
    if (length == 0 || code_point > 0xFF) return std::nullopt;
    out.push_back(static_cast<std::byte>(code_point));
    utf8.remove_prefix(length);
  }
  return out;
}

bool steers_text(std::uint32_t code_point) noexcept {
  const auto within = [&](std::uint32_t first, std::uint32_t last) {
    return first <= code_point && code_point <= last;
  };
  return within(0x80, 0x9F) || within(0x200B, 0x200F) || within(0x2028, 0x202E) ||
         within(0x2066, 0x2069);
}

}  // namespace dckpt
