#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// Whether `a` comes before `b` where numbers count as numbers: layers.2 before layers.10.
bool natural_less(std::string_view a, std::string_view b);

/// Keys of one kind that differ in numbers only, as a row of a table.
struct KeyRow {
  std::string key;                   ///< "decoder.layers.{0…31}.weight ×32", or the only key
  std::vector<std::size_t> members;  ///< positions in `keys`
};

/// Folds keys that are equal but for their numbers (digits between '.', '/', '_' and '-') and of
/// one kind: whatever else a row of the table shows of them. Equal keys are one row, too. Rows
/// stand where their first member does.
std::vector<KeyRow> fold_keys(const std::vector<std::string>& keys,
                              const std::vector<std::string>& kinds);

}  // namespace dckpt::tool
