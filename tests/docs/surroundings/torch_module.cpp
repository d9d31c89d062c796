// A trainer of one process with a module of libtorch.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/torch.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

void SNIPPET() {
  const auto comm = dckpt::single_rank();
BLOCK
}
