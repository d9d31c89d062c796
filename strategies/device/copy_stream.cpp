// The memory of a copy is given back only when the copy has ended. Copies that go away are waited
// for, because the caller may free the tensors next. If they fail or do not end in time, their
// memory goes to its pool together with the event that tells when it is free
// (PendingCopies::settle, PageLockedPool::abandon). Streams may be destroyed before what is
// enqueued in them has ended.
//
// Drivers hold a limited number of copies per stream, and the call for one more blocks. Behind a
// kernel that hangs it would never return, so no copy is enqueued before the producer's kernels
// have ended.

#include "strategies/device/copy_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/pitched_rows.h"

namespace dckpt {
namespace {

std::shared_ptr<RegisteredDevice> registered(const Device& device) {
  if (auto found = find_device(device.kind)) return found;
  throw_error(ErrorCode::kUnsupported, "a tensor " + unreachable(device));
}

/// Sleeps between looks at an event, briefly at first: most copies take less than a millisecond.
class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, std::chrono::microseconds(1000));
  }

 private:
  std::chrono::microseconds next_{10};
};

}  // namespace

CopyStream::CopyStream(const Device& device)
    : device_(registered(device)),
      kind_(device.kind),
      index_(device.index),
      produced_(device_->runtime, index_) {
  DeviceRuntime& runtime = *device_->runtime;
  stream_ = runtime.create_stream(index_);
  try {
    produced_.record(runtime.producer_stream(index_));
    produced_.make_wait(stream_);
  } catch (...) {
    runtime.destroy_stream(index_, stream_);
    throw;
  }
}

CopyStream::~CopyStream() {
  device_->runtime->destroy_stream(index_, stream_);
}

void CopyStream::enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
                         const StridedView& from, const StridedView& to) {
  wait_for_producer();
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::ptrdiff_t>(elements) * static_cast<std::ptrdiff_t>(item_size);
  };
  for_each_rows(plan_runs(sizes, from, to), [&](const PitchedRows& rows) {
    DeviceCopy part = copy;
    part.from += bytes(rows.source);
    part.to += bytes(rows.destination);
    part.rows = static_cast<std::size_t>(rows.rows);
    part.row_bytes = static_cast<std::size_t>(bytes(rows.run));
    part.from_pitch = static_cast<std::size_t>(bytes(rows.source_pitch));
    part.to_pitch = static_cast<std::size_t>(bytes(rows.destination_pitch));
    device_->runtime->copy(index_, stream_, part);
  });
}

void CopyStream::finish() {
  const CopyEvent event(device_->runtime, index_);
  event.record(stream_);
  wait_for(event);
}

void CopyStream::wait_for_producer() {
  if (is_produced_) return;
  wait_for(produced_);
  is_produced_ = true;
}

void CopyStream::wait_for(const CopyEvent& event) const {
  const auto timeout = device_->settings.timeout;
  const auto begin = std::chrono::steady_clock::now();
  for (Pause pause; !event.reached(); pause()) {
    // Counted in milliseconds: the greatest limits are beyond what nanoseconds can hold.
    if (std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin) <
        timeout)
      continue;
    const double seconds = std::chrono::duration<double>(timeout).count();
    if (kind_ == Device::Kind::kCallbacks)
      throw_error(ErrorCode::kUnavailable,
                  "a callback of a tensor has not moved its piece within {} s; the limit is set "
                  "with register_callbacks()",
                  seconds);
    throw_error(ErrorCode::kUnavailable,
                "{} device {} has not copied a piece within {} s: a kernel of the stream before "
                "it may hang; DeviceSettings::timeout is the limit",
                device_->runtime->name(), index_, seconds);
  }
}

void CopyStreams::add_devices_of(std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    const Device& device = tensor.device();
    if (device.kind == Device::Kind::kCpu || !tensor.has_data()) continue;
    const auto is_there = [&](const auto& entry) { return entry.first == device; };
    if (std::ranges::none_of(streams_, is_there))
      streams_.emplace_back(device, std::make_unique<CopyStream>(device));
  }
}

CopyStream& CopyStreams::of(const Tensor& tensor) const {
  return *std::ranges::find(streams_, tensor.device(), [](const auto& entry) -> const Device& {
            return entry.first;
          })->second;
}

void CopyStreams::finish() const {
  for (const auto& [device, stream] : streams_) stream->finish();
}

PendingCopies::PendingCopies(CopyStream& stream)
    : stream_(stream),
      event_(std::make_shared<const CopyEvent>(stream.device_->runtime, stream.index_)) {}

PendingCopies::~PendingCopies() {
  settle();
}

void PendingCopies::enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
                            const StridedView& from, const StridedView& to) {
  copying_ = true;
  recorded_ = false;
  stream_.enqueue(sizes, item_size, copy, from, to);
}

void PendingCopies::to_host(ShapeView sizes, std::size_t item_size, const std::byte* tensor,
                            const StridedView& tensor_view, std::byte* host,
                            const StridedView& host_view) {
  enqueue(sizes, item_size,
          {.to = host, .from = tensor, .direction = DeviceCopy::Direction::kToHost}, tensor_view,
          host_view);
}

void PendingCopies::to_device(ShapeView sizes, std::size_t item_size, const std::byte* host,
                              const StridedView& host_view, std::byte* tensor,
                              const StridedView& tensor_view) {
  enqueue(sizes, item_size,
          {.to = tensor, .from = host, .direction = DeviceCopy::Direction::kToDevice}, host_view,
          tensor_view);
}

void PendingCopies::on_device(ShapeView sizes, std::size_t item_size, const std::byte* from,
                              const StridedView& from_view, std::byte* to,
                              const StridedView& to_view) {
  enqueue(sizes, item_size, {.to = to, .from = from, .direction = DeviceCopy::Direction::kOnDevice},
          from_view, to_view);
}

void PendingCopies::enqueued() {
  if (!copying_) return;
  event_->record(stream_.stream_);
  recorded_ = true;
}

void PendingCopies::wait() {
  if (!copying_) return;
  try {
    stream_.wait_for(*event_);
  } catch (const CheckpointError& error) {
    gave_up_ = error.code() == ErrorCode::kUnavailable;
    throw;
  }
  copying_ = false;
}

std::shared_ptr<const CopyEvent> PendingCopies::settle() noexcept {
  if (copying_ && !gave_up_) {
    try {
      if (!recorded_) enqueued();
      wait();
    } catch (...) {
      // The caller that waited before, or waits for other copies, reports the error.
    }
  }
  return copying_ ? event_ : nullptr;
}

StagedPiece::StagedPiece(CopyStream& stream)
    : StagedPiece(stream, stream.device_->pool.acquire(stream.index_)) {}

StagedPiece::StagedPiece(CopyStream& stream, std::byte* memory) try
    : pool_(stream.device_->pool), memory_(memory), copies_(stream) {
} catch (...) {
  stream.device_->pool.release(memory);
}

std::unique_ptr<StagedPiece> StagedPiece::extra(CopyStream& stream) {
  std::byte* const memory = stream.device_->pool.try_acquire(stream.index_);
  if (memory == nullptr) return nullptr;
  return std::unique_ptr<StagedPiece>(new StagedPiece(stream, memory));
}

StagedPiece::~StagedPiece() {
  if (auto free_when = copies_.settle())
    pool_.abandon(memory_, std::move(free_when));
  else
    pool_.release(memory_);
}

}  // namespace dckpt
