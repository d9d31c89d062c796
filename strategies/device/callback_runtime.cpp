#include "strategies/device/callback_runtime.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/state/callback_elements.h"

namespace dckpt {
namespace {

constexpr std::size_t kOnDevicePiece = std::size_t{4} << 20;
constexpr std::size_t kCallbackPage = 4096;

/// Moves a piece through a function and checks how much of it was moved.
template <typename Function, typename View>
void move_piece(const CallbackElements& elements, const Function& function, const char* name,
                const std::byte* at, View piece) {
  const std::string tensor = to_string(elements.whole);
  if (!function) {
    throw_error(ErrorCode::kInvalidArgument,
                "the callbacks of a tensor {} have no function `{}`, which this operation needs",
                tensor, name);
  }
  const auto offset = static_cast<std::uint64_t>(at - elements.whole.data());
  std::size_t moved = 0;
  try {
    moved = function(offset, piece);
  } catch (...) {
    const CheckpointError error = current_error();
    throw CheckpointError(error.code(),
                          str_format("the callback `{}` of a tensor {} failed at byte {}: {}", name,
                                     tensor, offset, error.message()),
                          error.context(), error.cause());
  }
  if (moved != piece.size()) {
    throw_error(ErrorCode::kIo,
                "the callback `{}` of a tensor {} returned {} at byte {}; expected the {} bytes of "
                "the piece",
                name, tensor, moved, offset, piece.size());
  }
}

void read_elements(const CallbackElements& elements, const std::byte* from, MutableByteView to) {
  move_piece(elements, elements.callbacks.read, "read", from, to);
}

void write_elements(const CallbackElements& elements, std::byte* to, ByteView from) {
  move_piece(elements, elements.callbacks.write, "write", to, from);
}

using Elements = std::shared_ptr<const CallbackElements>;

void copy_rows(const DeviceCopy& copy, const Elements& from, const Elements& to) {
  Bytes piece(from && to ? std::min(kOnDevicePiece, copy.row_bytes) : 0);
  for (std::size_t row = 0; row < copy.rows; ++row) {
    const std::byte* source = copy.from + row * copy.from_pitch;
    std::byte* target = copy.to + row * copy.to_pitch;
    if (!to) {
      read_elements(*from, source, {target, copy.row_bytes});
    } else if (!from) {
      write_elements(*to, target, {source, copy.row_bytes});
    } else {
      for (std::size_t at = 0; at < copy.row_bytes; at += piece.size()) {
        const std::size_t count = std::min(piece.size(), copy.row_bytes - at);
        read_elements(*from, source + at, {piece.data(), count});
        write_elements(*to, target + at, {piece.data(), count});
      }
    }
  }
}

/// The progress of an event. The thread of a stream may outlive the event.
class EventState {
 public:
  void record() {
    const std::lock_guard lock(mutex_);
    ++recorded_;
    failure_.reset();
  }
  void reach(const std::optional<CheckpointError>& failure) {
    const std::lock_guard lock(mutex_);
    ++reached_;
    failure_ = failure;
    changed_.notify_all();
  }
  /// Throws the error of the copies before the event, once.
  bool reached() {
    const std::lock_guard lock(mutex_);
    if (reached_ < recorded_) return false;
    if (failure_) throw *std::exchange(failure_, std::nullopt);
    return true;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ == recorded_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  std::optional<CheckpointError> failure_;
};

/// A thread and its work. The thread is detached, because it may never return from a callback.
class CallbackStream : public std::enable_shared_from_this<CallbackStream> {
 public:
  using Step = std::function<void(std::optional<CheckpointError>& failure)>;

  void enqueue(Step step) {
    const std::lock_guard lock(mutex_);
    if (!runs_) std::thread([own = shared_from_this()] { own->run(); }).detach();
    runs_ = true;
    work_.push_back(std::move(step));
    changed_.notify_one();
  }
  /// The thread ends when the work is done.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || !work_.empty(); });
      if (work_.empty()) return;
      Step step = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      step(failure_);
      step = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> work_;
  bool runs_ = false;
  bool closed_ = false;
  std::optional<CheckpointError> failure_{};  ///< used by the thread alone
};

using SharedEvent = std::shared_ptr<EventState>;
using SharedStream = std::shared_ptr<CallbackStream>;

class CallbackRuntime final : public DeviceRuntime {
 public:
  std::string name() const override { return "callback"; }

  std::byte* allocate_page_locked(int /*device*/, std::size_t bytes) override {
    return static_cast<std::byte*>(std::aligned_alloc(
        kCallbackPage, (bytes + kCallbackPage - 1) / kCallbackPage * kCallbackPage));
  }
  void free_page_locked(std::byte* memory) noexcept override { std::free(memory); }

  /// Nothing fills callback tensors in a stream.
  Stream producer_stream(int /*device*/) override { return nullptr; }
  Stream create_stream(int /*device*/) override {
    return new SharedStream(std::make_shared<CallbackStream>());
  }
  void destroy_stream(int /*device*/, Stream stream) noexcept override {
    auto* const shared = static_cast<SharedStream*>(stream);
    (*shared)->close();
    delete shared;
  }

  Event create_event(int /*device*/) override {
    return new SharedEvent(std::make_shared<EventState>());
  }
  void destroy_event(int /*device*/, Event event) noexcept override {
    delete static_cast<SharedEvent*>(event);
  }
  void record(int /*device*/, Event event, Stream stream) override {
    const SharedEvent& state = *static_cast<SharedEvent*>(event);
    state->record();
    if (stream == nullptr) return state->reach({});
    enqueue(stream, [state](std::optional<CheckpointError>& failure) { state->reach(failure); });
  }
  void wait(int /*device*/, Stream stream, Event event) override {
    enqueue(stream, [state = *static_cast<SharedEvent*>(event)](
                        std::optional<CheckpointError>& /*failure*/) { state->wait(); });
  }
  bool reached(int /*device*/, Event event) override {
    return (*static_cast<SharedEvent*>(event))->reached();
  }

  void copy(int /*device*/, Stream stream, const DeviceCopy& copy) override {
    if (copy.rows == 0 || copy.row_bytes == 0) return;
    const auto elements = [&](const std::byte* address, std::size_t pitch) {
      return find_callback_elements(address, (copy.rows - 1) * pitch + copy.row_bytes);
    };
    const bool reads = copy.direction != DeviceCopy::Direction::kToDevice;
    const bool writes = copy.direction != DeviceCopy::Direction::kToHost;
    enqueue(stream, [copy, from = reads ? elements(copy.from, copy.from_pitch) : nullptr,
                     to = writes ? elements(copy.to, copy.to_pitch)
                                 : nullptr](std::optional<CheckpointError>& failure) {
      if (failure) return;
      try {
        copy_rows(copy, from, to);
      } catch (...) {
        failure = current_error();
      }
    });
  }

 private:
  static void enqueue(Stream stream, CallbackStream::Step step) {
    (*static_cast<SharedStream*>(stream))->enqueue(std::move(step));
  }
};

}  // namespace

std::shared_ptr<DeviceRuntime> callback_runtime() {
  static const auto* const runtime =
      new std::shared_ptr<DeviceRuntime>(std::make_shared<CallbackRuntime>());
  return *runtime;
}

void register_callbacks(const DeviceSettings& settings) {
  register_device(Device::Kind::kCallbacks, callback_runtime(), settings);
}

}  // namespace dckpt
