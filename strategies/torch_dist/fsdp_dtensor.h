#pragma once

#include <cstddef>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Megatron's fsdp_dtensor is a plain DCP directory with keys of its own.
bool is_fsdp_dtensor(const Metadata& metadata);

/// Megatron-FSDP before its fix numbers the layers of each pipeline stage from 0. Stages that use
/// the same keys overwrite each other, so that only one's layers are stored, and a load into
/// another pipeline layout fills the others with them in silence. Throws CheckpointError
/// (unsupported) if several stages have saved, and there are fewer layers than `args`, Megatron's
/// arguments, say.
void check_layers(const Metadata& metadata, const Value& args);
/// What is there gets its number in the model: the stage that has written a tensor is that of the
/// rank in its file's name ("__5_0.distcp"), as Megatron orders ranks, and all stages have the same
/// number of layers. Others stay missing. Throws CheckpointError (unsupported) if `args` do not say
/// how many layers, stages and ranks there are, or say that stages differ, and if parts of a tensor
/// come from several stages.
void renumber_layers(Metadata& metadata, const Value& args);
/// How many stages have saved their RNG states, whose keys begin with "rng_state.(STAGE, ".
std::size_t count_pipeline_stages(const Metadata& metadata);

}  // namespace dckpt
