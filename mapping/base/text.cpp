#include "mapping/base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "mapping/base/utf8.h"

namespace dckpt {
namespace {

std::string escaped(std::string_view text, std::size_t limit, bool escape_quotes) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (i >= limit) {
      out += "…";
      break;
    }
    const auto [length, code_point] = decode_utf8(text.substr(i), Surrogates::kRefuse);
    const char c = text[i];
    if (length > 1 && !steers_text(code_point)) {
      out += text.substr(i, length);
      i += length;
    } else if (c == '\n') {
      out += "\\n", ++i;
    } else if (c == '\t') {
      out += "\\t", ++i;
    } else if (c == '\r') {
      out += "\\r", ++i;
    } else if (c == '\\' || (escape_quotes && c == '\'')) {
      out += '\\', out += c, ++i;
    } else if (length == 1 && c >= 0x20 && c != 0x7F) {
      out += c, ++i;
    } else {
      std::array<char, 5> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", static_cast<unsigned char>(c));
      out += hex.data(), ++i;
    }
  }
  return out;
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbors that lead from
/// one to the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);  // distances of the prefixes of b to a without its
                                                  // last two bytes, without its last one, and to
                                                  // all of a
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// Matches one `[…]` class whose '[' is at `at`; moves `at` past it. An unclosed class is a literal
/// '['.
bool class_match(std::string_view pattern, std::size_t& at, char c) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  const std::size_t first = i;
  bool matched = false;
  for (; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      matched |= pattern[i] <= c && c <= pattern[i + 2];
      i += 2;
    } else {
      matched |= pattern[i] == c;
    }
  }
  if (i >= pattern.size()) {
    ++at;
    return c == '[';
  }
  at = i + 1;
  return matched != negated;
}

}  // namespace

std::string quote(std::string_view text, std::size_t limit) {
  return "'" + escaped(text, limit, true) + "'";
}

std::string printable(std::string_view text, std::size_t limit) {
  return escaped(text, limit, false);
}

bool is_utf8(std::string_view text) noexcept {
  return is_utf8(text, Surrogates::kRefuse);
}

std::string quoted_list(std::span<const std::string> items, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < std::min(items.size(), limit); ++i) {
    if (i > 0) out += ", ";
    out += quote(items[i]);
  }
  if (items.size() > limit) out += " and " + grouped(items.size() - limit) + " more";
  return out;
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLongestCompared = 256;  // the distance is quadratic in the length
  if (word.size() > kLongestCompared) return std::nullopt;
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestCompared) continue;
    const std::size_t difference = word.size() > candidate.size() ? word.size() - candidate.size()
                                                                  : candidate.size() - word.size();
    if (difference >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t star_text = 0;
  while (t < text.size()) {
    bool matched = false;
    if (p < pattern.size()) {
      if (pattern[p] == '*') {
        star = p++;
        star_text = t;
        continue;
      }
      std::size_t next = p;
      if (pattern[p] == '[') {
        matched = class_match(pattern, next, text[t]);
      } else {
        matched = pattern[p] == '?' || pattern[p] == text[t];
        next = p + 1;
      }
      if (matched) {
        p = next;
        ++t;
        continue;
      }
    }
    if (star == std::string_view::npos) return false;
    p = star + 1;
    t = ++star_text;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !(value >= 0)) return std::nullopt;
  std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    static constexpr std::string_view kPrefixes = "KMGTP";
    const std::size_t power =
        kPrefixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
    if (power == std::string_view::npos) return std::nullopt;
    unit.remove_prefix(1);
    if (!(unit.empty() || unit == "iB" || unit == "ib")) return std::nullopt;
    scale = std::ldexp(1.0, 10 * static_cast<int>(power + 1));
  }
  const double bytes = std::round(value * scale);
  if (!(bytes < 9.2e18)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::optional<std::uint64_t> parse_u64(std::string_view text) {
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || rest != text.data() + text.size())
    return std::nullopt;
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (;;) {
    const std::size_t end = text.find(separator, start);
    parts.emplace_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

}  // namespace dckpt
