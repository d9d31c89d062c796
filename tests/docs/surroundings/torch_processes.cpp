// A trainer of one process that has a torch tensor.
#include <dckpt/torch.h>

#include <cstdlib>

void SNIPPET() {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  const at::Tensor parameter = dckpt::to_torch(dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4, 8}));
BLOCK
}
