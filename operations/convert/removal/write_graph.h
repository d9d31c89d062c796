#pragma once

#include <unordered_map>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

/// Members that are not written, for some lists, tuples, sets and dicts (pairs of a dict; for an
/// object, pairs of its dict items).
using Omissions = std::unordered_map<Graph::Id, std::vector<bool>>;

/// Returns the pickle (protocol 4) of a graph. Python loads from it what it would have loaded from
/// the original pickle, with the same references to one object, except for `omitted`. Throws
/// CheckpointError: (unsupported) for tuples and arguments that contain themselves and for more
/// than 1000 levels, (corrupt) for persistent ids, which mean nothing without their archive.
Bytes write_graph(const Graph& graph, const Omissions& omitted = {});

}  // namespace dckpt::pickle
