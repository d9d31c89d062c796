#pragma once

#include "group.h"

namespace gpt {

/// The two ends of a region in which each rank of a group works on its piece of the weights, with
/// gradients (Megatron's f and g). copy_to returns the tensor itself; its gradient is the sum of
/// the ranks' gradients.
at::Tensor copy_to(const at::Tensor& tensor, const Group& group);
/// reduce_from returns the sum of the ranks' tensors; the gradient passes unchanged.
at::Tensor reduce_from(const at::Tensor& tensor, const Group& group);

/// Returns rows of a table for numbers of any shape; each rank has a run of the table's rows.
at::Tensor vocabulary_embedding(const at::Tensor& numbers, const at::Tensor& rows,
                                const Group& group);

/// Returns the mean cross entropy; each rank has the logits [..., vocabulary / size] of a run of
/// the vocabulary.
at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                    const Group& group);

}  // namespace gpt
