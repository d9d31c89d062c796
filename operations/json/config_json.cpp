#include "operations/json/config_json.h"

#include "configs/maps/key_map_schema.h"
#include "configs/policy/policy_schema.h"
#include "mapping/base/text.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

/// Converts YAML to JSON; unquoted words become the values that they denote.
Value to_value(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kList)
    return json_list(node.values, [](const YamlNode& value) { return to_value(value); });
  if (node.kind == YamlNode::Kind::kMap) {
    Value map = Value::dict();
    for (std::size_t i = 0; i < node.keys.size(); ++i)
      map[node.keys[i].text] = to_value(node.values[i]);
    return map;
  }
  if (node.kind == YamlNode::Kind::kNull) return {};
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  if (const auto number = parse_u64(node.text)) return *number;
  return node.text;
}

}  // namespace

std::string to_json(const std::vector<ConfigProblem>& problems, const std::string& file,
                    const std::vector<MapRemark>& remarks) {
  const auto entry = [&](const ConfigProblem& problem) {
    return Value::dict({{"file", problem.file.empty() ? file : problem.file},
                        {"line", problem.place.line},
                        {"column", problem.place.column},
                        {"code", to_string(problem.code)},
                        {"message", problem.message}});
  };
  const auto warning = [&](const MapRemark& remark) {
    return Value::dict({{"file", remark.place.file.empty() ? file : remark.place.file},
                        {"line", remark.place.place.line},
                        {"column", remark.place.place.column},
                        {"code", std::string(name_of(kFindingCodeNames, remark.finding.code))},
                        {"message", remark.finding.message}});
  };
  return json_text(Value::dict({{"file", file},
                                {"ok", problems.empty()},
                                {"problems", json_list(problems, entry)},
                                {"warnings", json_list(remarks, warning)}}));
}

std::string to_json(const std::vector<ConfigProblem>& problems, const std::string& file) {
  return to_json(problems, file, {});
}

std::string to_json(const Policy& policy) {
  return json_text(to_value(policy_type().show(policy)));
}

std::string to_json(const KeyMap& map) {
  return json_text(to_value(key_map_type().show(map)));
}

}  // namespace dckpt
