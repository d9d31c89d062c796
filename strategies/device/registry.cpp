#include "strategies/device/registry.h"

#include <map>
#include <mutex>
#include <utility>

namespace dckpt {
namespace {

struct Devices {
  std::mutex mutex;
  std::map<Device::Kind, std::shared_ptr<RegisteredDevice>> runtimes;
};

Devices& devices() {
  static Devices* const all = new Devices;  // outlives the static objects that save in their
                                            // destructors
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
  return "is in CUDA memory, which this program cannot reach: link dckpt::cuda and call "
         "register_cuda() of <dckpt/cuda.h> first, or copy the tensor to the CPU";
}

}  // namespace dckpt
