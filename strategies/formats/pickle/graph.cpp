#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

Graph::Extras Graph::extras(Id id) const noexcept {
  if (!is_object(id)) return {};
  const Word slot = id + 1 + number(id);
  if (!has(id, kExtended))
    return {.states = run(slot, words_[slot] == kNil ? 0 : 1), .list_items = {}, .dict_items = {}};
  const auto& [first, counts] = object_extras_[words_[slot]];
  const Word list_items = first + counts[0];
  return {run(first, counts[0]), run(list_items, counts[1]),
          run(list_items + counts[1], counts[2])};
}

}  // namespace dckpt::pickle
