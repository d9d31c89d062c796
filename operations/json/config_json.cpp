#include "operations/json/config_json.h"

#include "configs/maps/key_map_schema.h"
#include "configs/policy/policy_schema.h"
#include "mapping/base/text.h"
#include "operations/json/config_fields.h"
#include "operations/json/reports.h"

namespace dckpt {
namespace {

/// Converts YAML to JSON; unquoted words become the values that they denote.
Value json_of(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kList) {
    ValueList list;
    for (const YamlNode& value : node.values) list.push_back(json_of(value));
    return Value::list(std::move(list));
  }
  if (node.kind == YamlNode::Kind::kMap) {
    Value map = Value::dict();
    for (std::size_t i = 0; i < node.keys.size(); ++i)
      map[node.keys[i].text] = json_of(node.values[i]);
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
  CheckedConfig checked{.file = file};
  for (const ConfigProblem& problem : problems)
    checked.problems.push_back({problem.file.empty() ? file : problem.file, &problem});
  for (const MapRemark& remark : remarks)
    checked.warnings.push_back({remark.place.file.empty() ? file : remark.place.file, &remark});
  return json_text(json_value(checked));
}

std::string to_json(const std::vector<ConfigProblem>& problems, const std::string& file) {
  return to_json(problems, file, {});
}

std::string to_json(const Policy& policy) {
  return json_text(json_of(policy_type().show(policy)));
}

std::string to_json(const KeyMap& map) {
  return json_text(json_of(key_map_type().show(map)));
}

}  // namespace dckpt
