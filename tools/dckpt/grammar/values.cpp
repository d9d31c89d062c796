#include "tools/dckpt/grammar/values.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

// CLI11's options cannot carry user data, but the names of their checks can:
// "takes:1:key,size,chunks".
constexpr std::string_view kMark = "takes";

std::string encoded(Takes kind, const std::vector<std::string>& choices) {
  std::string text;
  for (const std::string& choice : choices) text += (text.empty() ? "" : ",") + choice;
  return str_format("{}:{}:{}", kMark, static_cast<int>(kind), text);
}

std::string refusal(const std::string& found, const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, found) != choices.end()) return "";
  const std::optional<std::string> close = nearest(found, choices);
  return str_format("found {}, expected {}{}", quote(found), alternatives(choices, "or"),
                    close ? str_format("; did you mean {}?", quote(*close)) : std::string());
}

}  // namespace

std::string alternatives(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " " + last + " " : ", ") + words[i];
  return text;
}

CLI::Validator takes(Takes kind) {
  return {[](std::string&) { return std::string(); }, "", encoded(kind, {})};
}

CLI::Validator one_of(std::vector<std::string> choices) {
  const std::string name = encoded(Takes::kChoice, choices);
  return {[choices = std::move(choices)](std::string& found) { return refusal(found, choices); },
          "", name};
}

CLI::Validator not_negative() {
  const auto check = [](std::string& found) {
    double number = 0;
    const char* const end = found.data() + found.size();
    const auto [rest, error] = std::from_chars(found.data(), end, number);
    return error == std::errc() && rest == end && number >= 0
               ? std::string()
               : str_format("found {}, expected a number from 0 on", quote(found));
  };
  return {check, ""};
}

Values values_of(CLI::Option& option) {
  for (int i = 0;; ++i) {
    const CLI::Validator* check = nullptr;
    try {
      check = option.get_validator(i);
    } catch (const CLI::OptionNotFound&) {
      return {};
    }
    const std::vector<std::string> parts = split(check->get_name(), ':');
    if (parts.size() != 3 || parts[0] != kMark) continue;
    Values values{.kind = static_cast<Takes>(parse_u64(parts[1]).value_or(0))};
    if (!parts[2].empty()) values.choices = split(parts[2], ',');
    return values;
  }
}

}  // namespace dckpt::tool
