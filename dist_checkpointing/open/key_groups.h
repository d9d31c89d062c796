#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy/options.h"

namespace dckpt {

using KeySet = std::set<std::string>;

/// Returns a key without its numbers: components that are decimal numbers become `*`, and so does
/// an object's place in its grid. "layers.11.mlp.w" → "layers.*.mlp.w", "rng/shard_0.1_4.2" →
/// "rng/shard_*".
std::string without_numbers(std::string_view key);

/// Keys that differ only in their numbers.
struct KeyGroup {
  std::string pattern;  ///< without_numbers() of the keys; of a single key, the key itself
  std::string first;    ///< lexicographically smallest key
  std::size_t count = 0;
};

/// Returns "'layers.*.w' (24 keys, e.g. 'layers.0.w')".
std::string to_string(const KeyGroup& group);

/// Returns the groups in the order of their smallest keys.
std::vector<KeyGroup> group_keys(const KeySet& keys);

/// Number of groups that a table shows; it says how many more keys there are.
inline constexpr std::size_t kShownGroups = 20;

/// Returns a table for messages: one line per group of keys, each beginning with "\n  ".
std::string table_of(const KeySet& keys);

/// Returns the same for keys that are not stored, each with the most similar stored key, if one is
/// close.
std::string table_of_unknown(const KeySet& unknown, const KeySet& stored);

/// Returns the rules for load.rename under which all requested keys are stored, if the stored keys
/// have one common prefix too much or too little, or differ in the names that torch.compile and
/// other module wrappers put into keys ("layers.0._orig_mod.w"). Empty if no such rules exist.
std::vector<RenameRule> suggest_rename(const KeySet& asked, const KeySet& stored);

}  // namespace dckpt
