#include "tensor_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace gpt {
namespace {

struct Reduce : torch::autograd::Function<Reduce> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& tensor,
                            const Group* group) {
    at::Tensor sum = tensor.clone(at::MemoryFormat::Contiguous);
    group->sum(sum);
    return sum;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list& gradients) {
    return {gradients[0], {}};
  }
};

/// Numbers counted from this rank's first row, and whether it has their row (else the number is 0).
struct Local {
  at::Tensor numbers, here;
  Local(const at::Tensor& wanted, std::int64_t rows, const Group& group) {
    numbers = wanted - group.rank() * rows;
    here = (numbers >= 0).logical_and(numbers < rows);
    numbers = numbers * here;
  }
};

}  // namespace

at::Tensor copy_to(const at::Tensor& tensor, const Group& group) {
  if (group.size() == 1 || !tensor.requires_grad()) return tensor;
  at::Tensor copy = tensor.view_as(tensor);
  copy.register_hook([&group](const at::Tensor& gradient) {
    at::Tensor sum = gradient.clone(at::MemoryFormat::Contiguous);
    group.sum(sum);
    return sum;
  });
  return copy;
}

at::Tensor reduce_from(const at::Tensor& tensor, const Group& group) {
  return group.size() == 1 ? tensor : Reduce::apply(tensor, &group);
}

at::Tensor vocabulary_embedding(const at::Tensor& numbers, const at::Tensor& rows,
                                const Group& group) {
  const Local local(numbers, rows.size(0), group);
  return reduce_from(at::embedding(rows, local.numbers) * local.here.unsqueeze(-1), group);
}

at::Tensor vocabulary_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                    const Group& group) {
  const at::Tensor largest = logits.detach().amax(-1, /*keepdim=*/true);
  group.max(largest);
  const at::Tensor shifted = logits - largest;
  const Local local(targets, logits.size(-1), group);
  const at::Tensor wanted =
      reduce_from(shifted.gather(-1, local.numbers.unsqueeze(-1)).squeeze(-1) * local.here, group);
  return (reduce_from(shifted.exp().sum(-1), group).log() - wanted).mean();
}

}  // namespace gpt
