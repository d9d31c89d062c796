// A trainer that has a torch tensor.
#include <dckpt/torch.h>

void SNIPPET() {
  const at::Tensor parameter = dckpt::to_torch(dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4, 8}));
BLOCK
}
