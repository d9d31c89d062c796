#include "migration/maps/findings/close_maps.h"

#include <algorithm>
#include <compare>
#include <set>
#include <utility>
#include <vector>

#include "configs/maps/key_map.h"
#include "configs/maps/key_pattern.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "migration/maps/assignment/key_fit.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostNamed = 4;

/// Maps fit better that know more of the keys; among equals, those that expect fewer others.
struct Closeness {
  std::size_t known = 0;
  std::ptrdiff_t missing = 0;  ///< the negative number of keys that all models of the map have
  friend auto operator<=>(const Closeness&, const Closeness&) = default;
};

/// Returns a key of each kind.
Metadata kinds_of(const Metadata& source) {
  Metadata kinds;
  std::set<std::string> seen;
  for (const TensorStorageMetadata& tensor : source.tensors) {
    if (seen.insert(skeleton_of(tensor.key)).second) kinds.tensors.emplace_back().key = tensor.key;
  }
  return kinds;
}

Closeness closeness_of(const KeyMap& map, KeyNames names, const Metadata& kinds) {
  const KeyFit fit = fit_keys(map, names, kinds, false, std::nullopt, std::nullopt);
  std::set<std::string> there;
  for (const TensorStorageMetadata& tensor : kinds.tensors) {
    if (const auto key = fit.prefix.key(tensor.key)) there.insert(skeleton_of(*key));
  }
  Closeness closeness{.known = fit.known};
  for (std::size_t row = 0; row < fit.side.rows.size(); ++row) {
    const MapRow& entry = map.tensors[row];
    if (entry.optional || !entry.only_if.empty() || !entry.layers.empty()) continue;
    for (const SideTensor& tensor : fit.side.rows[row].front().tensors)
      closeness.missing -= there.contains(tensor.names.front().skeleton()) ? 0 : 1;
  }
  return closeness;
}

}  // namespace

std::string closest_maps(const Metadata& source) {
  const Metadata kinds = kinds_of(source);
  std::vector<std::string> sides;
  for (const auto& [names, owner] :
       {std::pair(KeyNames::kHf, "Hugging Face's"), std::pair(KeyNames::kMegatron, "Megatron's")}) {
    Closeness best;
    std::vector<std::string> maps;
    for (const ShippedPolicy& shipped : shipped_maps()) {
      const KeyMap map = KeyMap::from_text(shipped.yaml, std::string(shipped.name) + ".yaml");
      const Closeness one = closeness_of(map, names, kinds);
      if (one.known == 0 || one < best) continue;
      if (one > best) maps.clear();
      best = one;
      maps.emplace_back(shipped.name);
    }
    if (!maps.empty())
      sides.push_back(str_format("{} by {} ({} of {})", quoted_list(maps, kMostNamed), owner,
                                 best.known, kinds.tensors.size()));
  }
  if (sides.empty()) return {};
  return str_format("; the shipped maps that know most kinds of its keys: {}{}{}", sides.front(),
                    sides.size() > 1 ? ", " : "", sides.size() > 1 ? sides.back() : "");
}

}  // namespace dckpt
