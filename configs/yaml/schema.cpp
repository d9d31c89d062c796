#include "configs/yaml/schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <forward_list>
#include <mutex>
#include <variant>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::config {
namespace {

constexpr std::size_t kShownText = 80;
constexpr std::int64_t kConfigVersion = 1;

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

/// Calls `use` with the integer type of that size.
template <typename Use>
auto with_integer(std::size_t bytes, Use use) {
  switch (bytes) {
    case 1: return use(std::int8_t{});
    case 2: return use(std::int16_t{});
    case 4: return use(std::int32_t{});
    default: return use(std::int64_t{});
  }
}

void read_integer(const Form& form, const Input& in, void* into) {
  std::int64_t value = 0;
  const char* const end = in.node.text.data() + in.node.text.size();
  const auto [rest, error] = std::from_chars(in.node.text.data(), end, value);
  if (!is_plain(in.node) || error != std::errc{} || rest != end || value < form.least ||
      value > form.most)
    return in.unfit(str_format("an integer from {} to {}", form.least, form.most));
  with_integer(form.bytes, [&](auto width) {
    const auto stored = static_cast<decltype(width)>(value);
    std::memcpy(into, &stored, sizeof(stored));
  });
}

YamlNode show_integer(const Form& form, const void* value) {
  return with_integer(form.bytes, [&](auto stored) {
    std::memcpy(&stored, value, sizeof(stored));
    const bool is_negative = form.least < 0 && stored < 0;
    return YamlNode::plain(
        is_negative ? std::to_string(static_cast<std::int64_t>(stored))
                    : std::to_string(static_cast<std::make_unsigned_t<decltype(stored)>>(stored)));
  });
}

void read_choice(const Form& form, const Input& in, void* into) {
  const Names& names = form.names;
  if (const auto position = read_name(in, names.all()))
    std::memcpy(into, names.pairs + *position * names.stride, names.bytes_of_one);
}

YamlNode show_choice(const Form& form, const void* value) {
  const Names& names = form.names;
  for (std::size_t i = 0; i < names.count; ++i) {
    if (std::memcmp(names.pairs + i * names.stride, value, names.bytes_of_one) == 0)
      return YamlNode::plain(std::string(names.name(i)));
  }
  return YamlNode::plain("?");
}

}  // namespace

std::string joined(const std::vector<std::string>& names, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? last : ", ") + names[i];
  return text;
}

std::string_view Names::name(std::size_t i) const noexcept {
  return *reinterpret_cast<const std::string_view*>(pairs + i * stride + name_at);
}

std::vector<std::string> Names::all() const {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) texts.emplace_back(name(i));
  return texts;
}

Form with_parts(Form form, std::initializer_list<Form> parts) {
  static std::mutex mutex;
  static auto* const all = new std::forward_list<std::vector<Form>>;  // types may be static, too
  const std::lock_guard lock(mutex);
  const auto same = std::ranges::find_if(
      *all, [&](const std::vector<Form>& kept) { return std::ranges::equal(kept, parts); });
  const std::vector<Form>& kept = same != all->end() ? *same : all->emplace_front(parts);
  form.parts = kept.data();
  form.part_count = kept.size();
  return form;
}

void Input::report(const std::string& message, ErrorCode code) const {
  problems.push_back({node.place, path.empty() ? message : path + ": " + message, code});
}

void Input::unfit(const std::string& expected) const {
  if (node.kind != YamlNode::Kind::kRefused)
    report(str_format("found {}, expected {}", found(node), expected));
}

Type<bool> flag() {
  return Type<bool>({.kind = Kind::kFlag})
      .reading([](const Input& in, bool& into) {
        if (is_plain(in.node) && (in.node.text == "true" || in.node.text == "false"))
          into = in.node.text == "true";
        else
          in.unfit("true or false");
      })
      .showing([](const bool& value) { return YamlNode::plain(value ? "true" : "false"); });
}

Type<std::string> text(const char* expected) {
  return Type<std::string>({.kind = Kind::kText, .expected = expected})
      .reading([](const Form& form, const Input& in, std::string& into) {
        if (in.node.kind == YamlNode::Kind::kText && !in.node.text.empty())
          into = in.node.text;
        else
          in.unfit(form.expected);
      })
      .showing([](const std::string& value) { return YamlNode::string(value); });
}

Type<std::uint64_t> size(std::uint64_t least, std::uint64_t most) {
  return Type<std::uint64_t>({.kind = Kind::kSize,
                              .least = static_cast<std::int64_t>(least),
                              .most = static_cast<std::int64_t>(most)})
      .reading([](const Form& form, const Input& in, std::uint64_t& into) {
        const auto least_bytes = static_cast<std::uint64_t>(form.least);
        const auto most_bytes = static_cast<std::uint64_t>(form.most);
        const auto bytes =
            in.node.kind == YamlNode::Kind::kText ? size_of(in.node.text) : std::nullopt;
        if (bytes && *bytes >= least_bytes && *bytes <= most_bytes)
          into = *bytes;
        else
          in.unfit(str_format("a size with its unit, from {} to {}, for example 512MiB",
                              size_text(least_bytes), size_text(most_bytes)));
      })
      .showing([](const std::uint64_t& value) { return YamlNode::plain(size_text(value)); });
}

Type<std::chrono::milliseconds> duration() {
  using Time = std::chrono::milliseconds;
  return Type<Time>({.kind = Kind::kDuration})
      .reading([](const Input& in, Time& into) {
        const auto time =
            in.node.kind == YamlNode::Kind::kText ? duration_of(in.node.text) : std::nullopt;
        if (time)
          into = *time;
        else
          in.unfit("none, or a time with its unit (ms, s, min, h), for example 30min");
      })
      .showing([](const Time& value) { return YamlNode::plain(duration_text(value)); });
}

Form integer_form(std::int64_t least, std::int64_t most, std::size_t bytes) {
  return {.kind = Kind::kInteger,
          .bytes = static_cast<std::uint8_t>(bytes),
          .least = least,
          .most = most,
          .reader = read_integer,
          .shower = show_integer};
}

Form choice_form(const Names& names) {
  return {.kind = Kind::kChoice, .names = names, .reader = read_choice, .shower = show_choice};
}

std::optional<std::size_t> read_name(const Input& in, const std::vector<std::string>& names) {
  const auto position =
      in.node.kind == YamlNode::Kind::kText ? std::ranges::find(names, in.node.text) : names.end();
  if (position != names.end()) return static_cast<std::size_t>(position - names.begin());
  in.unfit(joined(names, " or ") +
           (in.node.kind == YamlNode::Kind::kText ? did_you_mean(in.node.text, names) : ""));
  return std::nullopt;
}

std::optional<std::size_t> count_items(const Form& form, const Input& in) {
  const bool is_list = in.node.kind == YamlNode::Kind::kList;
  if (form.kind == Kind::kOneOrMore) {
    if (!is_list) return 1;
    if (in.node.values.size() >= static_cast<std::size_t>(form.least)) return in.node.values.size();
  } else if (is_list) {
    return in.node.values.size();
  }
  in.unfit(form.expected);
  return std::nullopt;
}

void read_items(const Form& form, const Input& in, void* items, std::size_t bytes_of_one) {
  if (in.node.kind != YamlNode::Kind::kList) return form.parts[0].read(in, items);
  for (std::size_t i = 0; i < in.node.values.size(); ++i)
    form.parts[0].read({in.node.values[i], in.path + "[" + std::to_string(i) + "]", in.problems},
                       static_cast<std::byte*>(items) + i * bytes_of_one);
}

YamlNode show_items(const Form& form, const void* items, std::size_t bytes_of_one,
                    std::size_t count) {
  const Form& item = form.parts[0];
  if (form.kind == Kind::kOneOrMore && count == 1) return item.show(items);
  std::vector<YamlNode> nodes;
  for (std::size_t i = 0; i < count; ++i)
    nodes.push_back(item.show(static_cast<const std::byte*>(items) + i * bytes_of_one));
  return YamlNode::list(std::move(nodes));
}

AnyField make_field(const char* name, const Form& form, std::size_t offset,
                    bool (*left_out)(const void* part)) {
  return {.name = name, .form = form, .offset = offset, .left_out = left_out};
}

AnyField moved(const AnyField& field, std::size_t offset) {
  AnyField result = field;
  result.offset += offset;
  return result;
}

std::vector<std::string> AnySchema::names() const {
  std::vector<std::string> all;
  for (const AnyField& field : fields) all.emplace_back(field.name);
  return all;
}

void AnySchema::add(const AnyField* more, std::size_t count) {
  fields.insert(fields.end(), more, more + count);
}

void read_section(const AnySchema& schema, const Input& in, void* into) {
  if (in.node.kind == YamlNode::Kind::kNull) return;
  const std::vector<std::string> names = schema.names();
  const std::string here = in.path.empty() ? "the file" : in.path;
  if (in.node.kind != YamlNode::Kind::kMap)
    return Input{in.node, here, in.problems}.unfit("a mapping with " + joined(names, " and "));
  for (const YamlNode& key : in.node.keys) {
    if (std::ranges::find(names, key.text) != names.end()) continue;
    in.problems.push_back(
        {key.place, str_format("{} has no field {}{}; it has {}", here, quote(key.text, kShownText),
                               did_you_mean(key.text, names), joined(names, " and "))});
  }
  for (std::size_t i = 0; i < in.node.keys.size(); ++i) {
    const std::string& name = in.node.keys[i].text;
    const auto field = std::ranges::find(schema.fields, name, &AnyField::name);
    if (field == schema.fields.end() || in.node.values[i].kind == YamlNode::Kind::kRefused)
      continue;
    const std::string path = in.path.empty() ? name : in.path + "." + name;
    field->form.read({in.node.values[i], path, in.problems},
                     static_cast<std::byte*>(into) + field->offset);
  }
  for (const AnyField& field : schema.fields) {
    if (field.required && in.node.find(field.name) == nullptr)
      in.report(str_format("'{}' is missing{}", field.name, schema.written));
  }
  if (schema.check != nullptr) schema.check(in, into);
}

YamlNode show_section(const AnySchema& schema, const void* value) {
  YamlNode map{.kind = YamlNode::Kind::kMap};
  for (const AnyField& field : schema.fields) {
    const void* const part = static_cast<const std::byte*>(value) + field.offset;
    if (field.hidden || (field.left_out != nullptr && field.left_out(part))) continue;
    map.keys.push_back(YamlNode::plain(field.name));
    map.values.push_back(field.form.show(part));
  }
  return map;
}

Form section_form(const AnySchema& schema) {
  return {.kind = Kind::kSection,
          .section = &schema,
          .reader = [](const Form& form, const Input& in,
                       void* into) { read_section(*form.section, in, into); },
          .shower = [](const Form& form,
                       const void* value) { return show_section(*form.section, value); }};
}

AnyField version_field(const char* what) {
  const auto type =
      Type<std::monostate>({.kind = Kind::kInteger,
                            .expected = what,
                            .least = kConfigVersion,
                            .most = kConfigVersion})
          .reading([](const Form& form, const Input& in, std::monostate&) {
            std::int64_t version = kConfigVersion;
            integer<std::int64_t>(1, INT32_MAX).read(in, version);
            if (version != kConfigVersion)
              in.report(str_format("this release reads {} of version {}, not of version {}",
                                   form.expected, kConfigVersion, version),
                        ErrorCode::kUnsupported);
          })
          .showing([](const std::monostate&) {
            return YamlNode::plain(std::to_string(kConfigVersion));
          });
  return {.name = "version", .form = type.form};
}

AnyField extends_field(const char* expected) {
  const auto type = Type<std::monostate>({.expected = expected})
                        .reading([](const Form& form, const Input& in, std::monostate&) {
                          std::string name;
                          text(form.expected).read(in, name);
                        });
  return {.name = "extends", .form = type.form, .hidden = true};
}

void require_version(const Input& in) {
  if (in.node.find("version") == nullptr)
    in.report("the version of the schema is missing; begin with the line 'version: 1'");
}

}  // namespace dckpt::config
