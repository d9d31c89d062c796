#include "tools/dckpt/render/key_rows.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the run of digits at `start`.
std::string_view digits_at(std::string_view text, std::size_t start) {
  const auto end = std::ranges::find_if_not(text.substr(start), is_digit);
  return text.substr(start, static_cast<std::size_t>(end - text.substr(start).begin()));
}

/// A key split into its numbers and the text between them.
struct Numbered {
  std::vector<std::string> text{""};
  std::vector<std::uint64_t> numbers{};
};

Numbered numbered(std::string_view key) {
  constexpr std::string_view kSeparators = "./_-";
  const auto separates = [&](std::size_t at) {
    return at >= key.size() || kSeparators.find(key[at]) != std::string_view::npos;
  };
  Numbered parts;
  for (std::size_t i = 0; i < key.size();) {
    const std::string_view digits = digits_at(key, i);
    const bool alone =
        !digits.empty() && (i == 0 || separates(i - 1)) && separates(i + digits.size());
    const std::optional<std::uint64_t> number = alone ? parse_u64(digits) : std::nullopt;
    if (number && std::to_string(*number) == digits) {
      parts.numbers.push_back(*number);
      parts.text.emplace_back();
    } else {
      parts.text.back() += digits.empty() ? key.substr(i, 1) : digits;
    }
    i += std::max<std::size_t>(digits.size(), 1);
  }
  return parts;
}

/// Returns "{0…31}", "{0,2,7}" or "{0…62: 32 numbers}".
std::string range_text(const std::set<std::uint64_t>& numbers) {
  constexpr std::size_t kListed = 6;
  const std::uint64_t first = *numbers.begin();
  const std::uint64_t last = *numbers.rbegin();
  if (numbers.size() == 1) return std::to_string(first);
  const std::string range = str_format("{}…{}", first, last);
  if (numbers.size() > 2 && last - first == numbers.size() - 1) return str_format("{{{}}}", range);
  if (numbers.size() > kListed)
    return str_format("{{{}: {} numbers}}", range, grouped(numbers.size()));
  std::string text;
  for (const std::uint64_t number : numbers)
    text += (text.empty() ? "" : ",") + std::to_string(number);
  return str_format("{{{}}}", text);
}

std::string row_text(const std::vector<std::string>& keys,
                     const std::vector<std::size_t>& members) {
  const std::string& first = keys[members.front()];
  if (members.size() == 1) return first;
  if (std::ranges::all_of(members, [&](std::size_t member) { return keys[member] == first; }))
    return str_format("{} ×{}", first, grouped(members.size()));
  std::vector<std::set<std::uint64_t>> numbers;
  for (const std::size_t member : members) {
    const Numbered parts = numbered(keys[member]);
    numbers.resize(parts.numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].insert(parts.numbers[i]);
  }
  const Numbered parts = numbered(first);
  std::string text = parts.text.front();
  std::uint64_t combinations = 1;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    text += range_text(numbers[i]) + parts.text[i + 1];
    combinations *= std::min<std::uint64_t>(numbers[i].size(), UINT32_MAX);
  }
  text += " ×" + grouped(members.size());
  return combinations == members.size() ? text : text + " (not all of them)";
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    const auto value = [](std::string_view digits) {
      return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
    };
    const std::string_view digits_a = digits_at(a, i);
    const std::string_view digits_b = digits_at(b, j);
    const std::string_view value_a = value(digits_a);
    const std::string_view value_b = value(digits_b);
    if (value_a.size() != value_b.size()) return value_a.size() < value_b.size();
    if (value_a != value_b) return value_a < value_b;
    i += digits_a.size();
    j += digits_b.size();
  }
  if ((i < a.size()) != (j < b.size())) return j < b.size();
  return a < b;  // equal except for leading zeros
}

std::vector<KeyRow> fold_keys(const std::vector<std::string>& keys,
                              const std::vector<std::string>& kinds) {
  std::unordered_map<std::string, std::size_t> row_of;
  std::vector<KeyRow> rows;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::string pattern = kinds[i];
    for (const std::string& text : numbered(keys[i]).text) pattern += '\0' + text;
    const auto [found, added] = row_of.emplace(std::move(pattern), rows.size());
    if (added) rows.emplace_back();
    rows[found->second].members.push_back(i);
  }
  for (KeyRow& row : rows) row.key = row_text(keys, row.members);
  return rows;
}

}  // namespace dckpt::tool
