#include <dckpt/cuda.h>

#include <cstdio>

/// On a machine with a GPU, its tensors are saved and loaded from now on.
void use_gpus() {
  if (dckpt::cuda_devices() == 0) return;
  dckpt::register_cuda({.device = {.page_locked = 256 << 20}});
}

/// Without a GPU, registering is an error that says why.
int main() {
  use_gpus();
  if (dckpt::cuda_devices() > 0) return 0;
  try {
    dckpt::register_cuda();
  } catch (const dckpt::CheckpointError& error) {
    std::puts(error.what());
    return error.code() == dckpt::ErrorCode::kUnsupported ? 0 : 1;
  }
  return 1;
}
