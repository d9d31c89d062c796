#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "mapping/base/problem_list.h"
#include "migration/maps/sides/mapped_keys.h"

namespace dckpt {

/// Groups keys that differ in numbers alone.
class KeyGroups {
 public:
  void add(const std::string& key);
  bool empty() const noexcept { return groups_.empty(); }
  bool any(const std::function<bool(const std::string& key)>& matches) const;
  void report(const std::string& what, ProblemList& problems) const;
  std::vector<AlikeKeys> groups(const std::string& why) const;

 private:
  std::map<std::string, std::vector<std::string>> groups_;  ///< by kind
};

/// The obstacles to a map that uses every key of a checkpoint and makes every key of the result.
struct Completeness {
  KeyGroups unknown{};                         ///< keys that no row has
  KeyGroups others{};                          ///< keys beside those of a language model
  KeyGroups missing{};                         ///< keys that rows need
  std::vector<std::string> problems{};         ///< other problems, as sentences
  std::vector<std::string> unknown_numbers{};  ///< numbers that rows need, as sentences

  /// Throws CheckpointError (mismatch) that lists all of them. `keys` names the source's keys:
  /// "Hugging Face keys". `left_out` is MapTarget::left_out.
  void raise_if_any(const KeyMap& map, const Metadata& source, const std::string& keys,
                    const std::vector<std::string>& left_out) const;
};

/// Checks that all elements are used once, except rows that pad the vocabulary. Throws
/// CheckpointError (mismatch) otherwise.
void require_balance(const KeyMap& map, const MappedKeys& mapped);

}  // namespace dckpt
