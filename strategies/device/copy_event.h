#pragma once

#include <memory>
#include <utility>

#include "strategies/device/runtime.h"

namespace dckpt {

/// An event that its last owner destroys. Safe to use from several threads.
class CopyEvent {
 public:
  CopyEvent(std::shared_ptr<DeviceRuntime> runtime, int device)
      : runtime_(std::move(runtime)), device_(device), event_(runtime_->create_event(device)) {}
  ~CopyEvent() { runtime_->destroy_event(device_, event_); }
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;

  /// These throw CheckpointError (io).
  void record(DeviceRuntime::Stream stream) const { runtime_->record(device_, event_, stream); }
  void make_wait(DeviceRuntime::Stream stream) const { runtime_->wait(device_, stream, event_); }
  bool reached() const { return runtime_->reached(device_, event_); }

 private:
  const std::shared_ptr<DeviceRuntime> runtime_;
  const int device_;
  const DeviceRuntime::Event event_;
};

/// Returns whether everything enqueued before the event is known to have ended; false after an
/// error.
inline bool has_ended(const CopyEvent& event) noexcept {
  try {
    return event.reached();
  } catch (...) {
    return false;
  }
}

}  // namespace dckpt
