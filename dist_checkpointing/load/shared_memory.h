#pragma once

#include "dist_checkpointing/load/tensor_request.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Compares destinations that have bytes in common, as tied weights do, with what is stored for
/// each of them; all have been filled. Reads them again; where nothing overlaps it reads nothing.
/// Throws CheckpointError (mismatch) naming the keys if different values are stored for one memory.
void check_shared_memory(const CheckpointReader& reader, const TensorRequest& request,
                         ReadOptions reading);

}  // namespace dckpt
