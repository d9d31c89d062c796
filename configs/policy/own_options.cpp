#include "configs/policy/own_options.h"

#include <algorithm>
#include <iterator>

#include "configs/yaml/yaml.h"
#include "mapping/base/error.h"

namespace dckpt {

OwnOptions::OwnOptions(
    std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  for (const auto& [name, value] : values) set(name, value);
}

OwnOptions::OwnOptions(YamlNode tree) : tree_(std::make_shared<const YamlNode>(std::move(tree))) {}

OwnOptions OwnOptions::from_yaml(std::string_view mapping) {
  ConfigProblems problems;
  std::optional<YamlNode> tree = parse_yaml(mapping, problems);
  raise_if_any(std::move(problems), "options of a strategy");
  if (!tree || tree->kind == YamlNode::Kind::kNull) return {};
  if (tree->kind != YamlNode::Kind::kMap)
    throw_error(ErrorCode::kInvalidArgument,
                "the options of a strategy are a list or a single text; write them as a "
                "mapping: {name: value}");
  return OwnOptions(*std::move(tree));
}

const YamlNode& OwnOptions::tree() const noexcept {
  static const YamlNode none;
  return tree_ ? *tree_ : none;
}

void OwnOptions::set(std::string_view name, std::string_view value) {
  YamlNode changed = tree();
  changed.kind = YamlNode::Kind::kMap;
  YamlNode text = YamlNode::plain(std::string(value));
  const auto known = std::ranges::find(changed.keys, name, &YamlNode::text);
  if (known == changed.keys.end()) {
    changed.keys.push_back(YamlNode::plain(std::string(name)));
    changed.values.push_back(std::move(text));
  } else {
    changed.values[static_cast<std::size_t>(known - changed.keys.begin())] = std::move(text);
  }
  tree_ = std::make_shared<const YamlNode>(std::move(changed));
}

void OwnOptions::remove(std::string_view name) {
  if (!has(name)) return;
  YamlNode changed = tree();
  const auto at = std::ranges::find(changed.keys, name, &YamlNode::text) - changed.keys.begin();
  changed.keys.erase(changed.keys.begin() + at);
  changed.values.erase(changed.values.begin() + at);
  tree_ = std::make_shared<const YamlNode>(std::move(changed));
}

bool OwnOptions::empty() const noexcept {
  return tree().keys.empty();
}

bool OwnOptions::has(std::string_view name) const noexcept {
  return tree().find(name) != nullptr;
}

std::string OwnOptions::value(std::string_view name) const {
  const YamlNode* const found = tree().find(name);
  return found == nullptr ? "" : found->text;
}

std::vector<std::string> OwnOptions::names() const {
  std::vector<std::string> names;
  std::ranges::transform(tree().keys, std::back_inserter(names), &YamlNode::text);
  return names;
}

bool OwnOptions::equals(const OwnOptions& other) const noexcept {
  return empty() ? other.empty() : tree() == other.tree();
}

}  // namespace dckpt
