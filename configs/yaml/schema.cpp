#include "configs/yaml/schema.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::config {
namespace {

constexpr std::size_t kShownText = 80;

struct Unit {
  const char* name;
  std::uint64_t bytes;
};
constexpr std::array kUnits{
    Unit{"TiB", std::uint64_t{1} << 40}, Unit{"GiB", std::uint64_t{1} << 30},
    Unit{"MiB", std::uint64_t{1} << 20}, Unit{"KiB", std::uint64_t{1} << 10}, Unit{"B", 1}};

std::string size_text(std::uint64_t bytes) {
  const auto unit = std::ranges::find_if(kUnits, [&](const Unit& candidate) {
    return bytes % candidate.bytes == 0 && bytes >= candidate.bytes;
  });
  return unit == kUnits.end() ? std::to_string(bytes) + "B"
                              : std::to_string(bytes / unit->bytes) + unit->name;
}

struct TimeUnit {
  const char* name;
  std::chrono::milliseconds length;
};
constexpr std::array kTimeUnits{
    TimeUnit{"h", std::chrono::hours(1)}, TimeUnit{"min", std::chrono::minutes(1)},
    TimeUnit{"s", std::chrono::seconds(1)}, TimeUnit{"ms", std::chrono::milliseconds(1)}};
constexpr std::chrono::hours kLongestTime{24 * 365};

std::string duration_text(std::chrono::milliseconds time) {
  if (time <= time.zero()) return "none";
  const auto unit = std::ranges::find_if(kTimeUnits, [&](const TimeUnit& candidate) {
    return time % candidate.length == time.zero();
  });
  return std::to_string(time / unit->length) + unit->name;
}

std::optional<std::chrono::milliseconds> duration_of(std::string_view text) {
  if (text == "none") return std::chrono::milliseconds(0);
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string_view name = text.substr(digits);
  if (name.starts_with(' ')) name.remove_prefix(1);
  const auto count = parse_u64(text.substr(0, digits));
  const auto unit = std::ranges::find(kTimeUnits, name, &TimeUnit::name);
  if (!count || unit == kTimeUnits.end()) return std::nullopt;
  if (*count == 0 || *count > static_cast<std::uint64_t>(kLongestTime / unit->length))
    return std::nullopt;
  return unit->length * static_cast<std::int64_t>(*count);
}

std::string found(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kText:
      return (node.quoted ? "the text " : "") + quote(node.text, kShownText);
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a mapping";
    case YamlNode::Kind::kNull:
    case YamlNode::Kind::kRefused: break;
  }
  return "nothing";
}

bool is_plain(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kText && !node.quoted;
}

std::string joined(const std::vector<std::string>& names, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? last : ", ") + names[i];
  return text;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const auto close = nearest(word, names);
  return close ? str_format(" (did you mean {}?)", quote(*close)) : "";
}

/// Parses numbers with a unit only: 8 could be in any unit.
std::optional<std::uint64_t> size_of(const std::string& text) {
  if (text.empty() || (text.back() >= '0' && text.back() <= '9') || text.back() == '.')
    return std::nullopt;
  return parse_size(text);
}

}  // namespace

void report_unfit(const YamlNode& node, const std::string& path, const std::string& expected,
                  ConfigProblems& problems) {
  if (node.kind != YamlNode::Kind::kRefused)
    problems.push_back(
        {node.place, str_format("{}: found {}, expected {}", path, found(node), expected)});
}

Type<bool> flag() {
  return {[](const YamlNode& node, const std::string& path, bool& into, ConfigProblems& problems) {
            if (is_plain(node) && (node.text == "true" || node.text == "false"))
              into = node.text == "true";
            else
              report_unfit(node, path, "true or false", problems);
          },
          [](const bool& value) { return YamlNode::plain(value ? "true" : "false"); }};
}

Type<std::string> text(std::string expected) {
  return {[expected = std::move(expected)](const YamlNode& node, const std::string& path,
                                           std::string& into, ConfigProblems& problems) {
            if (node.kind == YamlNode::Kind::kText && !node.text.empty())
              into = node.text;
            else
              report_unfit(node, path, expected, problems);
          },
          [](const std::string& value) { return YamlNode::string(value); }};
}

Type<std::uint64_t> size(std::uint64_t least, std::uint64_t most) {
  const std::string expected = str_format("a size with its unit, from {} to {}, for example 512MiB",
                                          size_text(least), size_text(most));
  return {[=](const YamlNode& node, const std::string& path, std::uint64_t& into,
              ConfigProblems& problems) {
            const auto bytes =
                node.kind == YamlNode::Kind::kText ? size_of(node.text) : std::nullopt;
            if (bytes && *bytes >= least && *bytes <= most)
              into = *bytes;
            else
              report_unfit(node, path, expected, problems);
          },
          [](const std::uint64_t& value) { return YamlNode::plain(size_text(value)); }};
}

Type<std::chrono::milliseconds> duration() {
  return {
      [](const YamlNode& node, const std::string& path, std::chrono::milliseconds& into,
         ConfigProblems& problems) {
        const auto time =
            node.kind == YamlNode::Kind::kText ? duration_of(node.text) : std::nullopt;
        if (time)
          into = *time;
        else
          report_unfit(node, path,
                       "none, or a time with its unit (ms, s, min, h), for example 30min",
                       problems);
      },
      [](const std::chrono::milliseconds& value) { return YamlNode::plain(duration_text(value)); }};
}

Type<std::int64_t> integer64(std::int64_t least, std::int64_t most) {
  const std::string expected = str_format("an integer from {} to {}", least, most);
  return {[=](const YamlNode& node, const std::string& path, std::int64_t& into,
              ConfigProblems& problems) {
            std::int64_t value = 0;
            const char* const end = node.text.data() + node.text.size();
            const auto [rest, error] = std::from_chars(node.text.data(), end, value);
            if (is_plain(node) && error == std::errc{} && rest == end && value >= least &&
                value <= most)
              into = value;
            else
              report_unfit(node, path, expected, problems);
          },
          [](const std::int64_t& value) { return YamlNode::plain(std::to_string(value)); }};
}

std::optional<std::size_t> read_name(const YamlNode& node, const std::string& path,
                                     const std::vector<std::string>& names,
                                     ConfigProblems& problems) {
  const auto position =
      node.kind == YamlNode::Kind::kText ? std::ranges::find(names, node.text) : names.end();
  if (position != names.end()) return static_cast<std::size_t>(position - names.begin());
  report_unfit(node, path,
               joined(names, " or ") +
                   (node.kind == YamlNode::Kind::kText ? did_you_mean(node.text, names) : ""),
               problems);
  return std::nullopt;
}

std::vector<std::optional<std::size_t>> read_keys(const YamlNode& node, const std::string& path,
                                                  const std::vector<std::string>& names,
                                                  ConfigProblems& problems) {
  std::vector<std::optional<std::size_t>> positions;
  const std::string here = path.empty() ? "the file" : path;
  if (node.kind == YamlNode::Kind::kNull) return positions;
  if (node.kind != YamlNode::Kind::kMap) {
    report_unfit(node, here, "a mapping with " + joined(names, " and "), problems);
    return positions;
  }
  for (const YamlNode& key : node.keys) {
    const auto known = std::ranges::find(names, key.text);
    if (known == names.end()) {
      problems.push_back(
          {key.place,
           str_format("{} has no field {}{}; it has {}", here, quote(key.text, kShownText),
                      did_you_mean(key.text, names), joined(names, " and "))});
      positions.emplace_back();
    } else {
      positions.emplace_back(static_cast<std::size_t>(known - names.begin()));
    }
  }
  return positions;
}

AnyRead read_member(std::size_t offset, AnyRead read) {
  return [offset, read = std::move(read)](const YamlNode& node, const std::string& path, void* into,
                                          ConfigProblems& problems) {
    read(node, path, static_cast<std::byte*>(into) + offset, problems);
  };
}

AnyShow show_member(std::size_t offset, AnyShow show) {
  return [offset, show = std::move(show)](const void* value) {
    return show(static_cast<const std::byte*>(value) + offset);
  };
}

AnyRead read_section(std::vector<AnyField> fields, AnyCheck check) {
  std::vector<std::string> names;
  for (const AnyField& field : fields) names.push_back(field.name);
  return [fields = std::move(fields), names = std::move(names), check = std::move(check)](
             const YamlNode& node, const std::string& path, void* into, ConfigProblems& problems) {
    const auto positions = read_keys(node, path, names, problems);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (!positions[i] || node.values[i].kind == YamlNode::Kind::kRefused) continue;
      const AnyField& field = fields[*positions[i]];
      field.read(node.values[i], path.empty() ? field.name : path + "." + field.name, into,
                 problems);
    }
    if (check && node.kind == YamlNode::Kind::kMap) check(node, path, into, problems);
  };
}

AnyShow show_section(std::vector<AnyField> fields) {
  return [fields = std::move(fields)](const void* value) {
    YamlNode map;
    map.kind = YamlNode::Kind::kMap;
    for (const AnyField& field : fields) {
      std::optional<YamlNode> shown = field.show(value);
      if (!shown) continue;
      map.keys.push_back(YamlNode::plain(field.name));
      map.values.push_back(std::move(*shown));
    }
    return std::optional(std::move(map));
  };
}

}  // namespace dckpt::config
