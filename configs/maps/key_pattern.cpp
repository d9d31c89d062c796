#include "configs/maps/key_pattern.h"

#include <algorithm>
#include <numeric>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxPattern = 512;
constexpr std::size_t kMaxNumbers = 4;
constexpr std::uint64_t kMaxNumber = 1'000'000'000;
constexpr std::uint64_t kMaxStep = 16;
constexpr std::string_view kDigits = "0123456789";

bool is_number(std::string_view part) {
  return part.size() > 2 && part.front() == '{' && part.back() == '}';
}

/// Returns "l+m" for "{l+m}".
std::string_view inside(std::string_view part) {
  return part.substr(1, part.size() - 2);
}

/// The parts of {m}, {l+m}, {2l} and {2l+1}.
struct Number {
  std::string_view name;
  std::string_view base{};   ///< the number that it continues, l in {l+m}
  std::string_view step{};   ///< digits, 2 in {2l+1}
  std::string_view first{};  ///< digits, 1 in {2l+1}
};

Number parse(std::string_view part) {
  std::string_view text = inside(part);
  const std::size_t digits = std::min(text.find_first_not_of(kDigits), text.size());
  const std::string_view step = text.substr(0, digits);
  text.remove_prefix(digits);
  const std::size_t plus = text.find('+');
  if (plus == text.npos) return {.name = text, .step = step};
  const std::string_view before = text.substr(0, plus), after = text.substr(plus + 1);
  if (!step.empty()) return {.name = before, .step = step, .first = after};
  return {.name = after, .base = before};
}

/// Parses a decimal as keys have it; empty for others, such as "007".
std::optional<std::int64_t> decimal(std::string_view part) {
  if (part.size() > 1 && part.front() == '0') return std::nullopt;
  const auto value = parse_u64(part);
  if (!value || *value > kMaxNumber) return std::nullopt;
  return static_cast<std::int64_t>(*value);
}

template <typename Use>
void for_each_part(std::string_view text, const Use& use) {
  while (true) {
    const std::size_t dot = text.find('.');
    if (!use(text.substr(0, dot))) return;
    if (dot == text.npos) return;
    text.remove_prefix(dot + 1);
  }
}

std::string concatenated(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ".") + part;
  return text;
}

}  // namespace

KeyPattern::KeyPattern(std::string_view text) : parts_(split(text, '.')) {
  for (const std::string& part : parts_) {
    if (!is_number(part)) continue;
    const Number number = parse(part);
    numbers_.emplace_back(number.name);
    const auto first = static_cast<std::int64_t>(parse_u64(number.first).value_or(0));
    first_.push_back(number.base.empty() ? std::optional(first) : std::nullopt);
    steps_.push_back(static_cast<std::int64_t>(parse_u64(number.step).value_or(1)));
  }
}

std::optional<std::string> KeyPattern::problem_of(std::string_view text) {
  if (text.size() > kMaxPattern) return str_format("a key has at most {} bytes", kMaxPattern);
  std::vector<std::string_view> seen;
  const std::vector<std::string> parts = split(text, '.');
  for (const std::string& part : parts) {
    if (part.empty()) return "parts of a key between dots are not empty";
    if (!is_number(part)) {
      if (part.find_first_of("{}*") == part.npos) continue;
      return str_format(
          "{} is not a part of a key: a number such as {{l}} takes the whole part between dots, "
          "and there are no other patterns",
          quote(part));
    }
    const auto [name, base, step, first] = parse(part);
    const auto has_plus = inside(part).find('+') != part.npos;
    const std::uint64_t every = parse_u64(step).value_or(0);
    const bool is_step = every >= 2 && every <= kMaxStep && name == "l" &&
                         (!has_plus || parse_u64(first).value_or(every) < every);
    if (name.empty() || name.find('+') != name.npos || kDigits.find(name.front()) != name.npos ||
        inside(part).find_first_of("{}") != part.npos ||
        (step.empty() ? has_plus && (base != "l" || name == "l") : !is_step))
      return str_format(
          "{} is not the name of a number; {{l+m}} is that of numbers m that follow "
          "those of {{l}}, and {{2l}} and {{2l+1}} are two layers for each {{l}}",
          quote(inside(part)));
    if (std::ranges::find(seen, name) != seen.end())
      return str_format("the number {} occurs twice", quote("{" + std::string(name) + "}"));
    seen.push_back(name);
  }
  if (seen.size() > kMaxNumbers) return str_format("a key has at most {} numbers", kMaxNumbers);
  return std::nullopt;
}

bool KeyPattern::has(std::string_view number) const noexcept {
  return std::ranges::find(numbers_, number) != numbers_.end();
}

bool KeyPattern::counts_on() const noexcept {
  return std::ranges::any_of(
      parts_, [](const std::string& part) { return is_number(part) && !parse(part).base.empty(); });
}

bool KeyPattern::has_steps() const noexcept {
  return std::ranges::any_of(steps_, [](std::int64_t step) { return step > 1; });
}

KeyPattern KeyPattern::behind(std::string_view number, std::int64_t count) const {
  KeyPattern result = *this;
  std::size_t next = 0;
  for (const std::string& part : parts_) {
    if (!is_number(part)) continue;
    if (parse(part).base == number) result.first_[next] = count;
    ++next;
  }
  return result;
}

std::optional<std::vector<std::int64_t>> KeyPattern::match(std::string_view key) const {
  std::vector<std::int64_t> numbers;
  std::size_t at = 0;
  bool fits = true;
  for_each_part(key, [&](std::string_view part) {
    if (at == parts_.size()) return fits = false;
    const std::string& wanted = parts_[at++];
    if (!is_number(wanted)) return fits = wanted == part;
    const auto number = decimal(part);
    const auto first = first_[numbers.size()];
    const std::int64_t step = steps_[numbers.size()];
    fits = number && first && *number >= *first && (*number - *first) % step == 0;
    if (fits) numbers.push_back((*number - *first) / step);
    return fits;
  });
  if (!fits || at != parts_.size()) return std::nullopt;
  return numbers;
}

std::string KeyPattern::key(std::span<const std::int64_t> numbers) const {
  std::string text;
  std::size_t next = 0;
  for (const std::string& part : parts_) {
    if (!text.empty()) text += '.';
    if (!is_number(part)) {
      text += part;
      continue;
    }
    text += std::to_string(numbers[next] * steps_[next] + first_[next].value_or(0));
    ++next;
  }
  return text;
}

KeyPattern KeyPattern::without(std::string_view number) const {
  KeyPattern result = *this;
  const auto found = std::ranges::find(numbers_, number) - numbers_.begin();
  if (found == std::ssize(numbers_)) return result;
  std::erase_if(result.parts_, [&](const std::string& part) {
    return is_number(part) && parse(part).name == number;
  });
  result.numbers_.erase(result.numbers_.begin() + found);
  result.first_.erase(result.first_.begin() + found);
  result.steps_.erase(result.steps_.begin() + found);
  return result;
}

KeyPattern KeyPattern::with_suffix(std::string_view suffix) const {
  KeyPattern result = *this;
  result.parts_.back() += suffix;
  return result;
}

std::string KeyPattern::text() const {
  return concatenated(parts_);
}

std::string KeyPattern::without_steps() const {
  std::vector<std::string> parts = parts_;
  for (std::string& part : parts) {
    if (is_number(part) && !parse(part).step.empty())
      part = "{" + std::string(parse(part).name) + "}";
  }
  return concatenated(parts);
}

std::string KeyPattern::skeleton() const {
  std::string text;
  for (const std::string& part : parts_)
    text += (text.empty() ? "" : ".") + (is_number(part) ? "{}" : skeleton_of(part));
  return text;
}

bool KeyPattern::overlaps(const KeyPattern& other) const {
  if (parts_.size() != other.parts_.size() || counts_on() != other.counts_on()) return false;
  std::size_t next = 0, next_other = 0;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const Values mine = values_of(part, next), others = other.values_of(part, next_other);
    if (mine.step == 0 && others.step == 0) {
      if (parts_[part] != other.parts_[part]) return false;
    } else if (!mine.first || !others.first ||
               (*mine.first - *others.first) % std::gcd(mine.step, others.step) != 0) {
      return false;
    }
  }
  return true;
}

KeyPattern::Values KeyPattern::values_of(std::size_t part, std::size_t& next) const {
  if (!is_number(parts_[part])) return {.first = decimal(parts_[part])};
  const Values values{.first = first_[next].value_or(0), .step = steps_[next]};
  ++next;
  return values;
}

std::string skeleton_of(std::string_view key) {
  std::string text;
  bool first = true;
  for_each_part(key, [&](std::string_view part) {
    if (!first) text += '.';
    first = false;
    const bool digits = !part.empty() && part.find_first_not_of(kDigits) == part.npos;
    text += digits ? std::string_view("{}") : part;
    return true;
  });
  return text;
}

}  // namespace dckpt
