#pragma once

#include "data.h"
#include "model.h"

namespace gpt {

/// Runs forward and backward over this rank's part of a batch, in micro-batches of `micro_batch`
/// samples that flow through the stages: all of them forward, then all backward (GPipe). Adds the
/// gradients of the mean loss over the part to those of the parameters. Returns that mean loss on
/// the last stage, 0 on others.
double forward_backward(const Model& model, const ParallelState& parallel, const Batch& batch,
                        std::int64_t micro_batch);

}  // namespace gpt
