#pragma once

#include <memory>

#include "mapping/base/api.h"
#include "strategies/device/runtime.h"

namespace DCKPT_API dckpt {

/// Sets the limits for callback tensors (callback_tensor()) of saves and loads that begin later:
/// `timeout` is the time that one call may take. No call is needed for the defaults.
void register_callbacks(const DeviceSettings& settings);

/// Returns the runtime that copies elements of callback tensors. A stream is a thread that begins
/// with its first copy and calls the functions of the tensors one after the other. An error of a
/// function ends all later copies of the stream, and each event that is recorded behind it reports
/// the error once.
std::shared_ptr<DeviceRuntime> callback_runtime();

}  // namespace dckpt
