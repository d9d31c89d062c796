#include "dist_checkpointing/load/select_keys.h"

#include <unordered_set>

#include "mapping/planning/validate.h"
#include "mapping/state/flatten.h"

namespace dckpt {
namespace {

class Choice {
 public:
  Choice(std::span<const std::string> wanted, std::set<std::string>& unused)
      : all_(wanted.empty()), wanted_(wanted.begin(), wanted.end()), unused_(unused) {
    unused_.insert(wanted.begin(), wanted.end());
  }

  bool takes(const std::string& key, const KeyPath& path) {
    bool named = is_wanted(key);
    KeyPath prefix;
    for (const PathElement& element : path) {
      prefix.push_back(element);
      named |= is_wanted(dotted_name(prefix));
    }
    return all_ || named;
  }

  bool takes(const std::string& key) {
    bool named = is_wanted(key);
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
      named |= is_wanted(key.substr(0, dot));
    return all_ || named;
  }

 private:
  bool is_wanted(const std::string& name) {
    if (!wanted_.contains(name)) return false;
    unused_.erase(name);
    return true;
  }

  bool all_;
  std::unordered_set<std::string> wanted_;
  std::set<std::string>& unused_;
};

}  // namespace

std::vector<SelectedKey> select_keys(const Metadata& metadata, std::span<const std::string> wanted,
                                     std::set<std::string>& unused) {
  if (key_of_stray_path(metadata)) throw *problem_of_paths(metadata);
  Choice choice(wanted, unused);
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  std::unordered_set<std::string> left(keys.begin(), keys.end());
  std::vector<SelectedKey> chosen;
  for (const auto& [key, path] : metadata.paths) {
    if (left.erase(key) != 0 && choice.takes(key, path)) chosen.push_back({key, path});
  }
  for (const std::string& key : keys) {
    if (left.contains(key) && choice.takes(key)) chosen.push_back({key, {key}});
  }
  std::vector<std::pair<std::string, KeyPath>> paths;
  for (const SelectedKey& entry : chosen) paths.emplace_back(entry.key, entry.path);
  if (const auto problem = problem_of_shared_path(paths)) throw *problem;
  return chosen;
}

}  // namespace dckpt
