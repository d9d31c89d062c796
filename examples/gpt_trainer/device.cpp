#include "device.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#ifdef GPT_TRAINER_CUDA
#include <dckpt/cuda.h>
#endif

namespace gpt {
namespace {

/// The number of GPUs; if 0, with the reason and what would help.
struct Gpus {
  int count = 0;
  std::string reason{}, remedy{};
};

#ifdef GPT_TRAINER_CUDA
/// Loads libtorch's GPU part, which registers itself when loaded. A program linked with torch_cpu
/// alone thus also runs where the CUDA libraries are missing.
Gpus use_gpus() {
  const int count = dckpt::cuda_devices();
  if (count == 0)
    return {.reason = "no CUDA device", .remedy = "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES"};
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
    return {.reason = std::string("no libtorch for CUDA devices (") + dlerror() + ")",
            .remedy =
                "Install a libtorch that was built with CUDA and the libraries that it needs, "
                "and build the trainer with it"};
  if (!at::hasCUDA())
    return {.reason = "libtorch finds no CUDA device",
            .remedy = "Look whether the driver that nvidia-smi shows is as new as its CUDA"};
  dckpt::register_cuda({.device = {.page_locked = 64 << 20}});
  return {.count = count};
}
#else
Gpus use_gpus() {
  return {.reason = "built without dckpt::cuda",
          .remedy =
              "Configure dckpt with -DDCKPT_CUDA=ON, and -DDCKPT_CUDA_ROOT if the CUDA "
              "runtime is not where it is looked for"};
}
#endif

}  // namespace

ChosenDevice choose_device(const std::string& wanted) {
  if (wanted == "cpu") return {c10::kCPU, "training on the CPU"};
  if (wanted != "auto" && wanted != "cuda")
    throw std::invalid_argument("--device " + wanted + ": expected auto, cpu or cuda");
  const Gpus gpus = use_gpus();
  if (gpus.count == 0) {
    if (wanted == "auto") return {c10::kCPU, gpus.reason + ": training on the CPU"};
    throw std::invalid_argument("--device cuda: " + gpus.reason + ". " + gpus.remedy +
                                ", or train with --device cpu");
  }
  const char* local_rank = std::getenv("LOCAL_RANK");
  if (local_rank == nullptr && gpus.count > 1)
    throw std::invalid_argument(
        "LOCAL_RANK is not set, which says which GPU is this process's: start the trainer with "
        "./run or torchrun");
  const int number = local_rank == nullptr ? 0 : std::stoi(local_rank) % gpus.count;
  return {c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number)),
          "training on CUDA devices; this node has " + std::to_string(gpus.count)};
}

}  // namespace gpt
