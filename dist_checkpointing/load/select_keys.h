#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"

namespace dckpt {

/// A value of a checkpoint with its path in a nested state dict: the recorded path, or just the
/// key.
struct SelectedKey {
  std::string key;
  KeyPath path;
};

/// Returns all keys of tensors and objects that `wanted` names, or all if it is empty, in the order
/// in which they were saved. A key is named by itself or by a path that leads to it, components
/// joined by dots; without a recorded path, by a part of the key that ends before a dot. Names that
/// select nothing go to `unused`.
std::vector<SelectedKey> select_keys(const Metadata& metadata, std::span<const std::string> wanted,
                                     std::set<std::string>& unused);

}  // namespace dckpt
