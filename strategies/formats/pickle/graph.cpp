#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

std::string_view Graph::text(Id id) const noexcept { return {nodes_[id].payload.text, nodes_[id].count}; }

ByteView Graph::bytes(Id id) const noexcept { return as_bytes(text(id)); }

std::span<const Graph::Id> Graph::children(Id id) const noexcept {
  const Node& node = nodes_[id];
  switch (node.kind) {
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kSet:
    case Kind::kFrozenSet:
    case Kind::kDict:
    case Kind::kGlobal:
    case Kind::kCall:
    case Kind::kNew:
    case Kind::kPersistent: return {edges_.data() + node.payload.first, is_object(id) ? node.arity : node.count};
    default: return {};
  }
}

Graph::Extras Graph::extras(Id id) const noexcept {
  if (!is_object(id)) return {};
  const ObjectExtras& extras = object_extras_[nodes_[id].count];
  const Id* states = edges_.data() + extras.first;
  const Id* list_items = states + extras.counts[0];
  const Id* dict_items = list_items + extras.counts[1];
  return {{states, extras.counts[0]}, {list_items, extras.counts[1]}, {dict_items, extras.counts[2]}};
}

}  // namespace dckpt::pickle
