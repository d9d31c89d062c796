#include "migration/maps/assignment/key_fit.h"

#include <string>
#include <utility>
#include <vector>

namespace dckpt {

KeyFit fit_keys(const KeyMap& map, KeyNames names, const Metadata& source, bool text_only,
                std::optional<std::int64_t> layers, std::optional<MegatronLayout> layout) {
  KeyFit best;
  const auto text = [&](std::string stored, std::string of_map) {
    KeyPrefix prefix = text_prefix(map, std::move(stored), std::move(of_map));
    prefix.is_of_text = map.towers.keys.empty() || text_only;
    return prefix;
  };
  const auto consider = [&](MegatronLayout one, const std::vector<KeyPrefix>& prefixes) {
    MapSide side = side_of(map, names, one, layers);
    const SideIndex index(side);
    for (const KeyPrefix& prefix : prefixes) {
      std::size_t known = 0;
      for (const TensorStorageMetadata& tensor : source.tensors) {
        const auto key = prefix.key(tensor.key);
        if (key && !index.find(*key).empty()) ++known;
      }
      if (known > best.known) best = {known, side, prefix};
    }
  };
  if (names == KeyNames::kHf) {
    consider({}, {{},
                  {.of_map = map.hf_prefix},
                  text(kTextPrefix, ""),
                  text(kTextPrefix, map.hf_prefix),
                  text(map.hf_prefix + kTextPrefix, map.hf_prefix)});
    return best;
  }
  for (const auto& [one, name] : kMegatronLayoutNames) {
    if (layout.value_or(one) == one)
      consider(one, {{}, {.stored = "module."}, {.stored = "model."}, text(kTextPrefix, "")});
  }
  return best;
}

}  // namespace dckpt
