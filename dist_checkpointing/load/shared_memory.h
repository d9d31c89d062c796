#pragma once

#include "dist_checkpointing/load/tensor_request.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Checks destinations that have bytes in common, such as tied weights, after all have been filled:
/// reads them again and compares them with the data stored for each. Reads nothing if nothing
/// overlaps. Throws CheckpointError (mismatch) naming the keys if different values are stored for
/// the same memory.
void check_shared_memory(const CheckpointReader& reader, const TensorRequest& request,
                         ReadOptions reading);

}  // namespace dckpt
