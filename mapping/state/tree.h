#pragma once

#include <functional>
#include <optional>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/key_path.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The depth limit of operations on trees of dicts and lists, in Megatron's terms: everything that
/// is neither a dict nor a list is a leaf, a tuple too. Each throws CheckpointError (unsupported)
/// for trees nested deeper than this, and for trees with more than 2^24 values (those that share
/// parts can be small as a graph and huge as a tree).
inline constexpr std::size_t kMaxTreeDepth = 1000;

/// Calls `visit` with the path and value of every leaf, in order. Dict keys that are neither text
/// nor integers appear in the path as text.
void visit_leaves(const Value& tree,
                  const std::function<void(const KeyPath& path, const Value& leaf)>& visit);

/// Does the same without paths, which cost more than most visits.
void visit_leaves(const Value& tree, const std::function<void(const Value& leaf)>& visit);

/// Returns whether the predicate holds for a leaf; does not ask further once it does.
bool any_leaf(const Value& tree, const std::function<bool(const Value& leaf)>& predicate);

/// Replaces every leaf by the result of `map`. Dicts and lists that are not shared are changed in
/// place.
Value map_leaves(Value tree, const std::function<Value(Value leaf)>& map);

/// The form of a list of which only some items are selected: a shorter list, or a dict keyed by the
/// old positions.
enum class ListForm : std::uint8_t { kList, kDict };

struct ExtractedLeaves {
  Value matching;
  Value rest;
};

/// Splits the leaves of a dict or list; both results keep its shape, and share with the tree the
/// containers whose leaves are all on one side. Containers that become empty are left out; those
/// that were empty belong to the rest (inside a list, `predicate` decides). Throws CheckpointError
/// (invalid argument) if the tree is a leaf.
ExtractedLeaves extract_matching(const Value& tree,
                                 const std::function<bool(const Value& leaf)>& predicate,
                                 ListForm form = ListForm::kList);

struct MergeRule {
  /// Called first wherever both trees have a value; a value that it returns is used.
  std::function<std::optional<Value>(const Value& into, const Value& from)> take{};
  bool add_keys = true;    ///< dicts of `from` may have keys that `into` lacks
  bool positions = false;  ///< a dict of positions may be merged into a list
};

/// Merges two trees: dicts are united, lists merged item by item. Throws CheckpointError
/// (mismatch), in Megatron's words, where both have a value and these are neither both dicts nor
/// both lists, or where lists differ in length.
Value merge(Value into, const Value& from, const MergeRule& rule = {});

/// Returns the value at a path: text leads into a dict, a number into a list. Null if there is
/// none.
const Value* find_element(const Value& tree, const KeyPath& path);

/// Sets the value at a path and creates the dicts and lists on the way (none becomes a container
/// too). Positions may come in any order: lists are filled with none up to that position, at most
/// `max_filled` in total. Returns how many were filled in. Throws CheckpointError (corrupt) where
/// the path contradicts the tree.
std::size_t set_element(Value& tree, const KeyPath& path, Value value,
                        std::size_t max_filled = 65'536);

/// Returns a value as text for messages: "None", "0.1", "'adam'", "float32 (2, 3)"; for others the
/// kind.
[[nodiscard]] std::string short_text(const Value& value);

}  // namespace dckpt
