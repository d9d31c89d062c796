#pragma once

#include "data.h"
#include "model.h"

namespace gpt {

/// Forward and backward over this rank's part of a batch, in micro-batches of `micro_batch` samples
/// that flow through the stages: all of them forward, then all backward (GPipe). Gradients, those
/// of the mean over the part, are added to the parameters'. Returns that mean loss on the last
/// stage, 0 on others.
double forward_backward(const Model& model, const ParallelState& parallel, const Batch& batch,
                        std::int64_t micro_batch);

}  // namespace gpt
