#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"

namespace dckpt {

/// A value of a checkpoint with the place where it belongs in a nested state dict: the recorded
/// one, or the key alone.
struct PlacedKey {
  std::string key;
  KeyPath path;
};

/// All keys of tensors and objects that `wanted` names, or all if it is empty, in the order in
/// which they were saved. A key is named by itself, or by a path that leads to it, components
/// joined by dots; without a recorded path, by what stands before one of its dots. Names that chose
/// nothing go to `unused`.
std::vector<PlacedKey> choose_keys(const Metadata& metadata, std::span<const std::string> wanted,
                                   std::set<std::string>& unused);

}  // namespace dckpt
