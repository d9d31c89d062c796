#include "tests/support/simulated_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/strided_copy.h"

namespace dckpt::testing {
namespace {

constexpr std::size_t kQueue = 1000;

struct Recorded {
  std::uint64_t wanted = 0;  ///< number of times it was recorded
  std::uint64_t passed = 0;
};

struct StreamThread {
  int device = 0;
  std::deque<std::function<bool()>> work;  ///< returns false if not done yet
  bool closed = false;
  std::jthread thread;
};

/// Device memory: `tensor` may not be accessed, `shadow` maps the same pages.
struct Mapping {
  std::byte* shadow;
  std::size_t size;
  int device;
};

}  // namespace

struct SimulatedDevice::Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::byte*, Mapping> memory;  ///< key: the address in tensors
  std::vector<std::unique_ptr<StreamThread>> streams;
  std::vector<StreamThread*> producers;
  std::set<void*> open_streams;
  std::map<void*, std::shared_ptr<Recorded>> events;
  std::map<std::byte*, std::size_t> page_locked;
  std::mt19937 random{20261122};
  std::string misuse;
  bool hangs = false;
  bool ends = false;

  StreamThread* add_stream(int device) {
    auto& stream = streams.emplace_back(std::make_unique<StreamThread>());
    stream->device = device;
    stream->thread = std::jthread([this, own = stream.get()] { run(*own); });
    return stream.get();
  }

  void run(StreamThread& stream) {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ends || (!hangs && !stream.work.empty()); });
      if (ends) return;
      const auto pause = std::chrono::microseconds(random() % 200);
      lock.unlock();
      std::this_thread::sleep_for(pause);
      lock.lock();
      if (hangs || ends || stream.work.empty()) continue;
      if (stream.work.front()()) {
        stream.work.pop_front();
        changed.notify_all();
      } else {
        changed.wait_for(lock, std::chrono::milliseconds(1));
      }
    }
  }

  bool is_idle() const {
    return std::ranges::all_of(streams, [](const auto& stream) { return stream->work.empty(); });
  }

  void enqueue(StreamThread& stream, std::function<bool()> step) {
    stream.work.push_back(std::move(step));
    changed.notify_all();
  }

  /// Returns the readable address of device memory; null for other memory.
  std::byte* shadow(const std::byte* address, std::size_t size, int device) {
    auto* const at = const_cast<std::byte*>(address);
    auto found = memory.upper_bound(at);
    if (found == memory.begin()) return nullptr;
    --found;
    const auto& [begin, mapping] = *found;
    if (at + size > begin + mapping.size) return nullptr;
    if (mapping.device != device) misuse = "a copy on the stream of another device";
    return mapping.shadow + (at - begin);
  }
};

SimulatedDevice::SimulatedDevice(int devices) : machine_(std::make_unique<Machine>()) {
  const std::lock_guard lock(machine_->mutex);
  for (int device = 0; device < devices; ++device)
    machine_->producers.push_back(machine_->add_stream(device));
}

SimulatedDevice::~SimulatedDevice() {
  {
    const std::lock_guard lock(machine_->mutex);
    machine_->ends = true;
    machine_->changed.notify_all();
  }
  for (auto& stream : machine_->streams) stream->thread.join();
  for (const auto& [memory, size] : machine_->page_locked) {
    (void)size;
    std::free(memory);
  }
}

void SimulatedDevice::count_call(const char* what) {
  int left = calls_left_;
  while (left >= 0 && !calls_left_.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 0)
    throw CheckpointError(ErrorCode::kIo, std::string("the simulated device fails: ") + what);
}

std::string SimulatedDevice::misuse() const {
  const std::lock_guard lock(machine_->mutex);
  return machine_->misuse;
}

void SimulatedDevice::hang(bool stop) {
  const std::lock_guard lock(machine_->mutex);
  machine_->hangs = stop;
  machine_->changed.notify_all();
}

bool SimulatedDevice::is_idle() const {
  const std::lock_guard lock(machine_->mutex);
  return machine_->is_idle();
}

Tensor SimulatedDevice::on_device(const Tensor& content, int device) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < content.dim(); ++axis)
    last += (content.shape()[axis] - 1) * content.strides()[axis];
  const std::size_t bytes =
      content.numel() == 0 ? 1 : static_cast<std::size_t>(last + 1) * item_size(content.dtype());
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t size = (bytes + page - 1) / page * page;
  const int file = memfd_create("simulated device", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) std::abort();
  void* const tensor = mmap(nullptr, size, PROT_NONE, MAP_SHARED, file, 0);
  void* const shadow = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (tensor == MAP_FAILED || shadow == MAP_FAILED) std::abort();
  if (content.numel() > 0) std::memcpy(shadow, content.data(), bytes);
  auto* const address = static_cast<std::byte*>(tensor);
  {
    const std::lock_guard lock(machine_->mutex);
    machine_->memory[address] = {static_cast<std::byte*>(shadow), size, device};
  }
  std::shared_ptr<const void> owner(tensor, [this, size, shadow](const void* memory) {
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(memory));
    const std::lock_guard lock(machine_->mutex);
    machine_->memory.erase(begin);
    munmap(begin, size);
    munmap(shadow, size);
  });
  return {content.dtype(), content.shape(),  content.strides(),
          address,         std::move(owner), {Device::Kind::kCuda, device}};
}

Tensor SimulatedDevice::on_cpu(const Tensor& tensor) {
  std::unique_lock lock(machine_->mutex);
  machine_->changed.wait(lock, [&] { return machine_->is_idle(); });
  const std::byte* const shadow = machine_->shadow(tensor.data(), 1, tensor.device().index);
  Tensor copy = Tensor::empty(tensor.dtype(), tensor.shape());
  strided_copy(tensor.shape(), item_size(tensor.dtype()), shadow, {0, tensor.strides()},
               copy.data(), {0, copy.strides()});
  return copy;
}

void SimulatedDevice::produce(const Tensor& tensor, const Tensor& content,
                              std::chrono::milliseconds after) {
  const auto at = std::chrono::steady_clock::now() + after;
  const std::lock_guard lock(machine_->mutex);
  machine_->enqueue(
      *machine_->producers[static_cast<std::size_t>(tensor.device().index)], [=, this] {
        if (std::chrono::steady_clock::now() < at) return false;
        std::memcpy(machine_->shadow(tensor.data(), content.nbytes(), tensor.device().index),
                    content.data(), content.nbytes());
        return true;
      });
}

std::byte* SimulatedDevice::allocate_page_locked(int, std::size_t bytes) {
  count_call("page-locked memory");
  if (page_locked_ + bytes > page_locked_limit_) return nullptr;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
  const std::lock_guard lock(machine_->mutex);
  machine_->page_locked[memory] = bytes;
  page_locked_ += bytes;
  ++objects_;
  return memory;
}

void SimulatedDevice::free_page_locked(std::byte* memory) noexcept {
  const std::lock_guard lock(machine_->mutex);
  const auto found = machine_->page_locked.find(memory);
  if (found == machine_->page_locked.end()) {
    machine_->misuse = "frees page-locked memory twice";
    return;
  }
  page_locked_ -= found->second;
  machine_->page_locked.erase(found);
  std::free(memory);
  --objects_;
}

DeviceRuntime::Stream SimulatedDevice::producer_stream(int device) {
  count_call("the producer's stream");
  return machine_->producers.at(static_cast<std::size_t>(device));
}

DeviceRuntime::Stream SimulatedDevice::create_stream(int device) {
  count_call("creating a stream");
  const std::lock_guard lock(machine_->mutex);
  void* const stream = machine_->add_stream(device);
  machine_->open_streams.insert(stream);
  ++objects_;
  return stream;
}

void SimulatedDevice::destroy_stream(int, Stream stream) noexcept {
  const std::lock_guard lock(machine_->mutex);
  if (machine_->open_streams.erase(stream) == 0)
    machine_->misuse = "destroys a stream twice";
  else
    --objects_;
}

DeviceRuntime::Event SimulatedDevice::create_event(int) {
  count_call("creating an event");
  auto event = std::make_shared<Recorded>();
  const std::lock_guard lock(machine_->mutex);
  machine_->events[event.get()] = event;
  ++objects_;
  return event.get();
}

void SimulatedDevice::destroy_event(int, Event event) noexcept {
  const std::lock_guard lock(machine_->mutex);
  if (machine_->events.erase(event) == 0)
    machine_->misuse = "destroys an event twice";
  else
    --objects_;
}

void SimulatedDevice::record(int device, Event event, Stream stream) {
  count_call("recording an event");
  ++recorded_;
  const std::lock_guard lock(machine_->mutex);
  auto* const thread = static_cast<StreamThread*>(stream);
  if (thread->device != device) machine_->misuse = "records on the stream of another device";
  const auto recorded = machine_->events.at(event);
  machine_->enqueue(*thread, [recorded, number = ++recorded->wanted] {
    recorded->passed = std::max(recorded->passed, number);
    return true;
  });
}

void SimulatedDevice::wait(int, Stream stream, Event event) {
  count_call("waiting for an event");
  const std::lock_guard lock(machine_->mutex);
  const auto recorded = machine_->events.at(event);
  machine_->enqueue(*static_cast<StreamThread*>(stream),
                    [recorded, number = recorded->wanted] { return recorded->passed >= number; });
}

bool SimulatedDevice::reached(int, Event event) {
  {
    const std::lock_guard lock(machine_->mutex);
    const auto& recorded = *machine_->events.at(event);
    if (recorded.passed < recorded.wanted) return false;
  }
  count_call("asking for an event");  // the number of unsuccessful queries depends on timing
  return true;
}

void SimulatedDevice::copy(int device, Stream stream, const DeviceCopy& copy) {
  count_call("copying");
  const std::lock_guard lock(machine_->mutex);
  if (machine_->hangs && static_cast<StreamThread*>(stream)->work.size() > kQueue)
    machine_->misuse = "enqueues more than a queue holds while the device hangs";
  machine_->enqueue(*static_cast<StreamThread*>(stream), [=, this] {
    for (std::size_t row = 0; row < copy.rows; ++row) {
      const std::byte* from = copy.from + row * copy.from_pitch;
      std::byte* to = copy.to + row * copy.to_pitch;
      if (copy.direction != DeviceCopy::Direction::kToDevice)
        from = machine_->shadow(from, copy.row_bytes, device);
      if (copy.direction != DeviceCopy::Direction::kToHost)
        to = machine_->shadow(to, copy.row_bytes, device);
      if (from == nullptr || to == nullptr) {
        machine_->misuse = "copies from or to memory that is not the device's";
        return true;
      }
      std::memcpy(to, from, copy.row_bytes);
    }
    return true;
  });
}

}  // namespace dckpt::testing
