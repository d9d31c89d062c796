#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mapping/state/value.h"
#include "operations/inspect/compare_elements.h"

namespace dckpt {

/// One place where two values differ: "optimizer.param_groups[0].lr", and the value on each side as
/// short JSON; empty if missing.
struct ValueDifference {
  std::string path;
  std::string a;
  std::string b;
};

/// Compares two rendered values (render.h) member by member; dicts by key, regardless of order.
/// Stops after `limit` differences.
std::vector<ValueDifference> compare_values(const Value& a, const Value& b,
                                            std::optional<Tolerance> tolerance, std::size_t limit);

}  // namespace dckpt
