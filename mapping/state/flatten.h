#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/tree.h"

namespace DCKPT_API dckpt {

/// The containers that PyTorch DCP opens when it flattens a state dict. Under each rule a tuple is
/// a leaf, and a list is opened only if it holds a tensor or a container that is opened.
enum class FlattenRule : std::uint8_t {
  kCurrent,    ///< torch 2.4 and newer: every dict is opened, so an empty one leaves no trace
  kKeepEmpty,  ///< the same, but an empty dict is a leaf, so that nothing is lost
  kTorch23,    ///< up to torch 2.3: dicts follow the rule of lists; the root is always opened
};

struct FlatLeaf {
  std::string name;  ///< the path joined by dots; DCP's FQN
  KeyPath path;      ///< dict keys as text, list positions as numbers; DCP's planner data
  Value value;
};

/// Returns Python's str(key) for the kinds of keys that state dicts have: text, an integer, a bool
/// or none; empty for others.
[[nodiscard]] std::optional<std::string> key_text(const Value& key);

/// Returns the leaves of a nested state dict under their dotted names, in order. Dicts are Value
/// dicts, and OrderedDicts and defaultdicts that came from a pickle. Throws CheckpointError
/// (invalid argument) if two leaves get the same name, or if a key is not text, an integer, a bool
/// or none.
std::vector<FlatLeaf> flatten_state_dict(const Value& state,
                                         FlattenRule rule = FlattenRule::kCurrent);

/// Replaces a leaf that flatten_state_dict found, like set_element, but a key that is not text
/// keeps its kind: "0" in a path may be the integer key 0 of a dict, or a position of a list.
void replace_leaf(Value& tree, const KeyPath& path, Value value);

/// Makes the nested state dict from paths and values in any order. A later value replaces an
/// earlier one at the same path; unnamed positions are none. Throws CheckpointError (corrupt) if
/// paths contradict each other, or leave out more than 2^20 positions.
Value unflatten_state_dict(std::span<const std::pair<KeyPath, Value>> leaves);

}  // namespace dckpt
