#pragma once

#include "mapping/planning/metadata.h"
#include "strategies/formats/dcp/metadata_graph.h"

namespace dckpt::dcp {

/// Reads a TensorProperties of any version of torch. Throws CheckpointError (corrupt), or
/// (unsupported) for tensors that are not dense or of an unknown dtype.
TensorProperties read_properties(const MetadataGraph& graph, MetadataGraph::Id id);

}  // namespace dckpt::dcp
