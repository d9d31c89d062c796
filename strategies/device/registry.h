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

/// Returns null if nothing is registered.
std::shared_ptr<RegisteredDevice> find_device(Device::Kind kind);

/// Returns the end of a message about a tensor in memory that neither the CPU nor a registered
/// device reaches, "is in CUDA memory, …", with a remedy; empty if it can be reached.
std::string unreachable(const Device& device);

}  // namespace dckpt
