#pragma once

#include <functional>

#include "conformance/report.h"
#include "mapping/base/api.h"
#include "mapping/state/tensor.h"
#include "strategies/device/runtime.h"

namespace DCKPT_API dckpt {

/// Checks that a DeviceRuntime conforms, for use in your own tests: copies in all directions, with
/// and without gaps, their order in a stream, events across streams and recorded again, and use
/// from several threads. `allocate` returns `bytes` bytes of memory on device 0, which its owner
/// frees. Leaves nothing behind if the runtime conforms. Takes milliseconds.
ConformanceReport check_device(
    DeviceRuntime& runtime,
    const std::function<std::shared_ptr<std::byte>(std::size_t bytes)>& allocate);

}  // namespace dckpt
