#include "mapping/torch/generators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/torch/tensor.h"

namespace dckpt::torch {
namespace {

std::vector<at::Generator> gpu_generators(const ::torch::nn::Module& module) {
  std::set<c10::DeviceIndex> gpus;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cuda()) gpus.insert(tensor.get_device());
  };
  for (const at::Tensor& tensor : module.parameters()) add(tensor);
  for (const at::Tensor& tensor : module.buffers()) add(tensor);
  std::vector<at::Generator> generators;
  for (const c10::DeviceIndex gpu : gpus)
    generators.push_back(at::globalContext().defaultGenerator({at::kCUDA, gpu}));
  return generators;
}

Value state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return from_torch(generator.get_state());
}

void set_state(at::Generator generator, const Value& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(to_torch(state.as_tensor()));
}

}  // namespace

Value generator_states(const ::torch::nn::Module& module) {
  Value states = Value::dict();
  states["cpu"] = state_of(at::detail::getDefaultCPUGenerator());
  ValueList gpus;
  for (const at::Generator& generator : gpu_generators(module)) gpus.push_back(state_of(generator));
  states["cuda"] = Value::list(std::move(gpus));
  return states;
}

void set_generator_states(const ::torch::nn::Module& module, const Value& states) {
  const std::vector<at::Generator> gpus = gpu_generators(module);
  const Value* const saved = states.find("cuda");
  if (!states.contains("cpu") || saved == nullptr || saved->size() != gpus.size()) {
    throw_error(ErrorCode::kMismatch, {.key = "rng_state"},
                "the loaded state of the random generators is not that of the CPU and {} GPUs, "
                "where the module is; load and restore with rng = false to keep the generators",
                gpus.size());
  }
  set_state(at::detail::getDefaultCPUGenerator(), states.at("cpu"));
  for (std::size_t i = 0; i < gpus.size(); ++i) set_state(gpus[i], saved->items()[i]);
}

}  // namespace dckpt::torch
