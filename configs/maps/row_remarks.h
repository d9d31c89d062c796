#pragma once

#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/finding.h"

namespace dckpt {

/// Returns warnings about a row that is sound and may not mean what its author wants:
///
///   keys-unknown    no module of Megatron-Core has the key, so that only a module of one's own
///                   loads it; in most cases, it is misspelled
///   order-assumed   query, key and value come from one tensor, and no step orders their heads
Findings row_remarks(const KeyMap& map, const MapRow& row);

struct MapRemark {
  MapPlace place;
  Finding finding;
};
/// Returns the remarks on all rows, in their order, and one on the map as a whole:
///
///   order-assumed   both sides have the same keys, and some of their tensors differ
std::vector<MapRemark> map_remarks(const KeyMap& map);

}  // namespace dckpt
