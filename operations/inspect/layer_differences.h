#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "operations/inspect/diff.h"

namespace dckpt {

/// Returns the share of a tensor's elements that differ. A tensor that is missing or has another
/// shape or dtype counts as entirely different.
double differing_share(const Difference& difference);

/// Returns for each stack of layers the largest differing_share() of any tensor in each layer.
/// `keys` are all keys that were compared. Empty if no differing tensor belongs to a layer or holds
/// several.
std::map<std::string, std::vector<double>> layer_differences(std::span<const std::string> keys,
                                                             const DiffReport& report);

}  // namespace dckpt
