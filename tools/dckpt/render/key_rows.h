#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// Returns whether `a` sorts before `b` with digits compared as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

/// A table row of keys that are of one kind and differ only in numbers.
struct KeyRow {
  std::string key;                   ///< "decoder.layers.{0…31}.weight ×32", or the only key
  std::vector<std::size_t> members;  ///< positions in `keys`
};

/// Folds keys that are of one kind and equal except for their numbers (digits between '.', '/', '_'
/// and '-') into one row each. `kinds` holds everything else that the table shows of each key.
/// Equal keys also share a row. Rows are in the order of their first members.
std::vector<KeyRow> fold_keys(const std::vector<std::string>& keys,
                              const std::vector<std::string>& kinds);

}  // namespace dckpt::tool
