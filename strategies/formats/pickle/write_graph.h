#pragma once

#include <unordered_map>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

/// What is not written of a graph: for some lists, tuples, sets and dicts, which members (of a
/// dict, which pairs; of an object, which pairs of its dict items).
using Omissions = std::unordered_map<Graph::Id, std::vector<bool>>;

/// The pickle (protocol 4) of a graph: Python loads from it what it would have loaded from the
/// pickle that was read, with the same references to one object, except what `omitted` names.
/// Throws CheckpointError: (unsupported) for tuples and arguments that contain themselves and for
/// more than 1000 levels, (corrupt) for persistent ids, which mean nothing without their archive.
Bytes write_graph(const Graph& graph, const Omissions& omitted = {});

}  // namespace dckpt::pickle
