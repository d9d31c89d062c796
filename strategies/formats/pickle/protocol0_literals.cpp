#include "strategies/formats/pickle/protocol0_literals.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

#include "mapping/base/text.h"
#include "mapping/base/utf8.h"

namespace dckpt::pickle {
namespace {

constexpr std::size_t kMaxDecimalDigits = 4300;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Takes exactly `count` hexadecimal digits from the front of `text`.
std::optional<std::uint32_t> take_hex(std::string_view& text, std::size_t count) {
  if (text.size() < count) return std::nullopt;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + count, value, 16);
  if (error != std::errc{} || end != text.data() + count) return std::nullopt;
  text.remove_prefix(count);
  return value;
}

char take(std::string_view& text) {
  const char c = text.front();
  text.remove_prefix(1);
  return c;
}

}  // namespace

std::optional<Bytes> parse_decimal(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.empty() || text.size() > kMaxDecimalDigits ||
      !std::all_of(text.begin(), text.end(), is_digit))
    return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  std::vector<std::uint32_t> limbs;  // the magnitude, least significant limb first
  for (const char digit : text) {
    std::uint64_t carry = static_cast<std::uint64_t>(digit - '0');
    for (std::uint32_t& limb : limbs) {
      carry += std::uint64_t{limb} * 10;
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    if (carry > 0) limbs.push_back(static_cast<std::uint32_t>(carry));
  }
  limbs.push_back(0);  // room for the sign
  if (negative) {
    std::uint64_t carry = 1;
    for (std::uint32_t& limb : limbs) {
      carry += static_cast<std::uint32_t>(~limb);
      limb = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }
  Bytes bytes;
  for (const std::uint32_t limb : limbs) append_le(bytes, limb);
  return bytes;
}

std::optional<double> parse_real(std::string_view text) {
  const std::string_view magnitude = text.starts_with('-') ? text.substr(1) : text;
  if (magnitude != "inf" && magnitude != "nan" &&
      magnitude.find_first_not_of("0123456789.e+-") != std::string_view::npos)
    return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint32_t> parse_index(std::string_view text) {
  const std::optional<std::uint64_t> index = parse_u64(text);
  if (!index || *index > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
  return static_cast<std::uint32_t>(*index);
}

bool is_plain_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<std::uint8_t>(c) < 0x80 && c != '\\'; });
}

std::optional<Bytes> decode_raw_unicode_escape(std::string_view text) {
  Bytes out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char c = take(text);
    append_utf8(out, static_cast<std::uint8_t>(c));
    if (c != '\\' || text.empty()) continue;
    const char kind = take(text);
    if (kind != 'u' && kind != 'U') {
      append_utf8(out, static_cast<std::uint8_t>(kind));
      continue;
    }
    const std::optional<std::uint32_t> code_point = take_hex(text, kind == 'u' ? 4 : 8);
    if (!code_point || *code_point > 0x10FFFF) return std::nullopt;
    out.pop_back();  // the backslash
    append_utf8(out, *code_point);
  }
  return out;
}

std::optional<Bytes> decode_quoted(std::string_view text) {
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') ||
      text.front() != text.back())
    return std::nullopt;
  text = text.substr(1, text.size() - 2);
  Bytes out;
  out.reserve(text.size());
  const auto push = [&](auto byte) { out.push_back(static_cast<std::byte>(byte)); };
  while (!text.empty()) {
    const char c = take(text);
    if (c != '\\') {
      push(c);
      continue;
    }
    if (text.empty()) return std::nullopt;
    switch (const char kind = take(text)) {
      case '\\':
      case '\'':
      case '"': push(kind); break;
      case 'a': push('\a'); break;
      case 'b': push('\b'); break;
      case 'f': push('\f'); break;
      case 'n': push('\n'); break;
      case 'r': push('\r'); break;
      case 't': push('\t'); break;
      case 'v': push('\v'); break;
      case 'x': {
        const std::optional<std::uint32_t> byte = take_hex(text, 2);
        if (!byte) return std::nullopt;
        push(*byte);
        break;
      }
      default: return std::nullopt;  // repr() writes no others
    }
  }
  return out;
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

}  // namespace dckpt::pickle
