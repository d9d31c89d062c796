#include <dckpt/cuda.h>

#include <cstdio>

/// If the machine has a GPU, enables saves and loads of its tensors.
void use_gpus() {
  if (dckpt::cuda_devices() == 0) return;
  dckpt::register_cuda({.device = {.page_locked = 256 << 20}});
}

/// Without a GPU, registering is an error with the reason.
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
