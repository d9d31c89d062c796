#include "mapping/base/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>

namespace dckpt::format_detail {
namespace {

/// The content of a field: the minimum width of an integer, padded with zeros if the width begins
/// with one, or the decimals of a real number.
struct Field {
  std::size_t width = 0;
  char fill = ' ';
  int decimals = -1;  ///< below 0: as few digits as tell the number from others
};

Field parse(std::string_view text) {
  Field field;
  if (text.starts_with(':')) text.remove_prefix(1);
  if (text.starts_with('.')) {
    std::from_chars(text.data() + 1, text.data() + text.size(), field.decimals);
  } else {
    if (text.starts_with('0')) field.fill = '0';
    std::from_chars(text.data(), text.data() + text.size(), field.width);
  }
  return field;
}

void write(std::string& out, std::string_view text, const Field& field) {
  out += text;
  if (text.size() < field.width) out.append(field.width - text.size(), ' ');
}

template <std::integral T>
void write(std::string& out, T number, const Field& field) {
  char digits[24];
  const char* const end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  std::string_view text(digits, static_cast<std::size_t>(end - digits));
  const std::size_t missing = field.width - std::min(field.width, text.size());
  if (field.fill == '0' && text.starts_with('-')) {
    out += '-';
    text.remove_prefix(1);
  }
  out.append(missing, field.fill);
  out += text;
}

void write(std::string& out, double number, const Field& field) {
  // The longest is the largest number, with all its decimals.
  constexpr std::size_t kMostDigits = std::numeric_limits<double>::max_exponent10 + 3;
  char digits[kMostDigits + 64];
  char* const last = digits + sizeof(digits);
  const double size = std::abs(number);
  std::to_chars_result result{};
  if (field.decimals >= 0)
    result =
        std::to_chars(digits, last, number, std::chars_format::fixed, std::min(field.decimals, 60));
  else if (size == 0 || (size >= 1e-4 && size < 1e16))
    result = std::to_chars(digits, last, number, std::chars_format::fixed);
  else
    result = std::to_chars(digits, last, number, std::chars_format::scientific);
  out.append(digits, result.ptr);
}

}  // namespace

std::string vformat(std::string_view text, std::span<const Arg> args) {
  std::string out;
  out.reserve(text.size() + 16 * args.size());
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '{' && text[at] != '}') {
      out += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out += text[at++];
    } else {
      const std::size_t end = text.find('}', at);
      const Field field = parse(text.substr(at + 1, end - at - 1));
      std::visit([&](const auto& value) { write(out, value, field); }, args[next++]);
      at = end;
    }
  }
  return out;
}

}  // namespace dckpt::format_detail
