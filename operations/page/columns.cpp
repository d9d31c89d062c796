#include "operations/page/columns.h"

#include <algorithm>

namespace dckpt {

std::string base64(ByteView bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t taken = std::min<std::size_t>(bytes.size() - i, 3);
    std::uint32_t group = 0;
    for (std::size_t byte = 0; byte < 3; ++byte)
      group = group << 8 | (byte < taken ? std::to_integer<std::uint32_t>(bytes[i + byte]) : 0);
    for (std::size_t digit = 0; digit < 4; ++digit)
      text += digit <= taken ? kDigits[group >> (18 - 6 * digit) & 63] : '=';
  }
  return text;
}

void NumberColumn::add(std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>(number | 0x80);
  bytes_ += static_cast<char>(number);
}

std::uint64_t TextTable::number_of(const std::string& text) {
  const auto [entry, added] = numbers_.emplace(text, texts_.size());
  if (added) texts_.emplace_back(text);
  return entry->second;
}

void NameColumn::add(const std::string& name) {
  const std::size_t same =
      static_cast<std::size_t>(std::ranges::mismatch(name, last_).in1 - name.begin());
  const std::size_t dot = same == 0 ? std::string::npos : name.rfind('.', same - 1);
  const std::size_t start = dot == std::string::npos || empty_ ? 0 : dot + 1;
  shared_.add(static_cast<std::uint64_t>(
      std::count(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(start), '.')));
  rest_.add(rests_.number_of(name.substr(start)));
  last_ = name;
  empty_ = false;
}

Value NameColumn::to_value() const {
  return Value::dict(
      {{"shared", shared_.to_value()}, {"rest", rest_.to_value()}, {"rests", rests_.to_value()}});
}

}  // namespace dckpt
