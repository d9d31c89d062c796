// This program only needs to link, since the machine may have no GPU.
#include <dckpt/nccl.h>
#include <nccl.h>

static_assert(NCCL_MAJOR >= 2, "<nccl.h> is NVIDIA's");

int main() try {
  dckpt::nccl_communicator(static_cast<ncclComm*>(nullptr));
  return 1;
} catch (const dckpt::CheckpointError& error) {
  return error.code() == dckpt::ErrorCode::kInvalidArgument ? 0 : 1;
}
