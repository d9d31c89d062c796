// A trainer of one process that has a torch tensor, with torchrun's environment.
#include <dckpt/torch.h>

#include <unistd.h>

#include <cstdlib>
#include <string>

void SNIPPET() {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_ADDR", "localhost", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 10000).c_str(), 1);
  const at::Tensor parameter = dckpt::to_torch(dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4, 8}));
BLOCK
}
