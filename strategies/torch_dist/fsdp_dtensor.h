#pragma once

#include <cstddef>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Returns whether a plain DCP directory has the keys of Megatron's fsdp_dtensor.
bool is_fsdp_dtensor(const Metadata& metadata);

/// Throws CheckpointError (unsupported) if several pipeline stages have saved, and there are fewer
/// layers than Megatron's arguments `args` say. Megatron-FSDP before its fix numbers the layers of
/// each stage from 0. Stages that use the same keys overwrite each other, so that only one's layers
/// are stored, and a load into another pipeline layout silently fills the others with them.
void check_layers(const Metadata& metadata, const Value& args);
/// Gives the stored layers their numbers in the model. The stage that has written a tensor is that
/// of the rank in its file's name ("__5_0.distcp"), as Megatron orders ranks, and all stages have
/// the same number of layers. Other layers stay missing. Throws CheckpointError (unsupported) if
/// `args` do not say how many layers, stages and ranks there are, or say that stages differ, and if
/// parts of a tensor come from several stages.
void renumber_layers(Metadata& metadata, const Value& args);
/// Returns the number of stages that have saved their RNG states, whose keys begin with
/// "rng_state.(STAGE, ".
std::size_t count_pipeline_stages(const Metadata& metadata);

}  // namespace dckpt
