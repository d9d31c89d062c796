#pragma once

#include <optional>
#include <string>

#include "mapping/base/finding.h"
#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"

// Building blocks of the JSON that this folder makes.

namespace dckpt {

/// Returns a list of the members of any range.
template <typename Range>
Value json_list(const Range& range) {
  return Value::list(ValueList(range.begin(), range.end()));
}

/// Returns a list of `render` applied to each member.
template <typename Range, typename Render>
Value json_list(const Range& range, const Render& render) {
  ValueList list;
  for (const auto& member : range) list.push_back(render(member));
  return Value::list(std::move(list));
}

/// Returns none for an empty optional.
template <typename T>
Value or_none(const std::optional<T>& value) {
  return value ? Value(*value) : Value();
}

inline Value to_value(const Finding& finding) {
  return Value::dict({{"code", std::string(name_of(kFindingCodeNames, finding.code))},
                      {"severity", std::string(name_of(kSeverityNames, finding.severity))},
                      {"message", finding.message},
                      {"keys", json_list(finding.keys)},
                      {"file", or_none(finding.file)},
                      {"offset", or_none(finding.offset)}});
}

inline Value to_value(const Findings& findings) {
  return json_list(findings, [](const Finding& finding) { return to_value(finding); });
}

/// Returns the text of a report as it is printed.
inline std::string json_text(const Value& value) {
  return to_json(value, 2) + "\n";
}

}  // namespace dckpt
