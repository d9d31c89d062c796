// Saves a torch tensor and loads it into another one.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <dckpt/torch.h>
#include <dckpt/torch_optimizer.h>

int main(int, char** argv) {
  const at::Tensor saved = at::arange(12, at::kFloat).view({3, 4});
  dckpt::StateDict state;
  state["w"] = dckpt::ShardedTensor::whole("w", dckpt::from_torch(saved));
  dckpt::save(state, argv[1]);

  const at::Tensor loaded = at::zeros({3, 4}, at::kFloat);
  state["w"] = dckpt::ShardedTensor::whole("w", dckpt::from_torch(loaded));
  dckpt::load(state, argv[1]);
  return at::equal(saved, loaded) ? 0 : 1;
}
