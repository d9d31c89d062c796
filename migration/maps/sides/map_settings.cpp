#include "migration/maps/sides/map_settings.h"

#include <set>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr EnumNames<ExtraStates, 2> kExtraStatesNames{
    {{ExtraStates::kNone, "none"}, {ExtraStates::kLeaveOut, "leave_out"}}};
constexpr EnumNames<bool, 2> kPartsNames{{{false, "all"}, {true, "text"}}};
constexpr EnumNames<bool, 2> kExpertsNames{{{true, "fused"}, {false, "single"}}};
constexpr EnumNames<bool, 1> kQuantizeNames{{{true, "fp8"}}};
constexpr EnumNames<bool, 2> kLocalNames{{{false, "te"}, {true, "local"}}};

template <typename Enum, std::size_t N>
Enum parse_choice(const std::string& setting, const std::string& text,
                  const EnumNames<Enum, N>& names) {
  if (const auto value = value_of(names, text)) return *value;
  std::vector<std::string> texts;
  for (const auto& [value, name] : names) texts.emplace_back(name);
  throw_error(ErrorCode::kInvalidArgument, "the setting {} is {}, expected one of {}", setting,
              quote(text), quoted_list(texts, N));
}

}  // namespace

MapSettings parse_settings(const std::vector<std::string>& set) {
  MapSettings settings;
  std::set<std::string> names;
  for (const std::string& text : set) {
    const std::size_t equals = text.find('=');
    if (equals == text.npos || equals == 0)
      throw_error(ErrorCode::kInvalidArgument, "a setting is NAME=VALUE, not {}", quote(text));
    std::string name = text.substr(0, equals);
    if (name == "dequantise") name = "dequantize";
    std::string value = text.substr(equals + 1);
    if (!names.insert(name).second)
      throw_error(ErrorCode::kInvalidArgument, "{} is set twice", quote(name));
    if (name == "from")
      settings.target.from = parse_choice(name, value, kKeyNamesNames);
    else if (name == "keys")
      settings.target.names = parse_choice(name, value, kKeyNamesNames);
    else if (name == "layout")
      settings.target.layout = parse_choice(name, value, kMegatronLayoutNames);
    else if (name == "names")
      settings.target.local_names = parse_choice(name, value, kLocalNames);
    else if (name == "extra_state")
      settings.extra_states = parse_choice(name, value, kExtraStatesNames);
    else if (name == "parts")
      settings.target.text_only = parse_choice(name, value, kPartsNames);
    else if (name == "experts")
      settings.target.fused_experts = parse_choice(name, value, kExpertsNames);
    else if (name == "prefix")
      settings.target.prefix = value;
    else if (name == "dequantize")
      settings.values = parse_choice(name, value, kMapCastNames);
    else if (name == "quantize")
      settings.fp8 = parse_choice(name, value, kQuantizeNames);
    else if (name == "dtype")
      settings.target.dtype = parse_choice(name, value, kMapCastNames);
    else
      settings.numbers.emplace(name, std::move(value));
  }
  return settings;
}

}  // namespace dckpt
