#include "strategies/device/registry.h"

#include <map>
#include <mutex>
#include <utility>

#include "strategies/device/callback_runtime.h"

namespace dckpt {
namespace {

struct Devices {
  std::mutex mutex{};
  std::map<Device::Kind, std::shared_ptr<RegisteredDevice>> runtimes;
};

Devices& devices() {
  // Outlives the static objects that save in their destructors.
  static Devices* const all = new Devices{
      .runtimes = {{Device::Kind::kCallbacks,
                    std::make_shared<RegisteredDevice>(callback_runtime(), DeviceSettings())}}};
  return *all;
}

}  // namespace

void register_device(Device::Kind kind, std::shared_ptr<DeviceRuntime> runtime,
                     const DeviceSettings& settings) {
  auto entry = runtime ? std::make_shared<RegisteredDevice>(std::move(runtime), settings) : nullptr;
  const std::lock_guard lock(devices().mutex);
  devices().runtimes[kind].swap(entry);  // the previous entry goes away after the lock
}

std::shared_ptr<RegisteredDevice> find_device(Device::Kind kind) {
  const std::lock_guard lock(devices().mutex);
  const auto found = devices().runtimes.find(kind);
  return found == devices().runtimes.end() ? nullptr : found->second;
}

std::string unreachable(const Device& device) {
  if (device.kind == Device::Kind::kCpu || find_device(device.kind)) return {};
  if (device.kind == Device::Kind::kCallbacks)
    return "is reached through callbacks, whose runtime was removed; call register_callbacks()";
  return "is in CUDA memory, which this program cannot reach: link dckpt::cuda and call "
         "register_cuda() of <dckpt/cuda.h> first, or copy the tensor to the CPU";
}

}  // namespace dckpt
