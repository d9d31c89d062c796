#pragma once

#include <cstddef>

#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The forms of an optimizer's tensors: flattened fragments, boxes, or both.
struct OptimizerForms {
  bool any = false;
  bool fragments = false;
  bool boxes = false;  ///< boxes of tensors that the optimizer holds for a model tensor
};
OptimizerForms optimizer_forms(const Metadata& metadata);

/// Reformulates optimizer tensors that are stored as boxes; Megatron-Core 0.8 to 0.15 need this
/// form to resume from a torch_dist checkpoint of sharding type fully_sharded_model_space. Does
/// nothing for other types. The grid is that of the model tensor's chunks, or of the tensor's own,
/// if these are regular, otherwise one cell: Megatron accepts any grid that does not join layers or
/// experts. Afterwards `metadata` is a plan of what to store: its chunks are cells, not chunks of
/// the source. Returns the number of tensors that changed their form. `fragments_lost`: the
/// source's format (zarr) does not record which tensors were flattened. Throws CheckpointError
/// (unsupported) for bucket space of such a source; other bucket space stays as it is.
std::size_t reformulate_optimizer_state(Metadata& metadata, const Value& common,
                                        bool fragments_lost);

}  // namespace dckpt
