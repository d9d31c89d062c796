#include <dckpt/cuda.h>

#include <cstdio>

/// Says what is there; without a GPU, registering is an error that says why.
int main() {
  if (dckpt::cuda_devices() > 0) {
    dckpt::register_cuda();
    return 0;
  }
  try {
    dckpt::register_cuda();
  } catch (const dckpt::CheckpointError& error) {
    std::puts(error.what());
    return error.code() == dckpt::ErrorCode::kUnsupported ? 0 : 1;
  }
  return 1;
}
