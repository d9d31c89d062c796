#pragma once

#include <memory>
#include <string>

#include "strategies/device/page_locked_pool.h"
#include "strategies/device/runtime.h"

namespace dckpt {

struct RegisteredDevice {
  RegisteredDevice(std::shared_ptr<DeviceRuntime> with, const DeviceSettings& how)
      : runtime(std::move(with)), settings(how), pool(runtime, settings.page_locked) {}

  const std::shared_ptr<DeviceRuntime> runtime;
  const DeviceSettings settings;
  PageLockedPool pool;
};

/// Null if nothing is registered.
std::shared_ptr<RegisteredDevice> find_device(Device::Kind kind);

/// What to do about a tensor in memory that neither the CPU nor a registered device reaches, as the
/// end of a message: "is in CUDA memory, …"; empty if it can be reached.
std::string unreachable(const Device& device);

}  // namespace dckpt
