// A trainer of one process that has a torch tensor, on any device.
#include <dckpt/torch.h>

#include <ATen/ATen.h>

void SNIPPET() {
  const at::Tensor parameter = at::zeros({4, 8});
  dckpt::StateDict state;
BLOCK
  dckpt::save(state, "SNIPPET");
}
