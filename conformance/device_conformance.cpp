#include "conformance/device_conformance.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr int kDevice = 0;
constexpr std::size_t kBytes = std::size_t{1} << 20;
constexpr auto kTimeout = std::chrono::seconds(60);

struct PageLocked {
  explicit PageLocked(DeviceRuntime& of)
      : runtime(of), data(runtime.allocate_page_locked(kDevice, kBytes)) {
    if (data == nullptr) throw std::string("there is no page-locked memory");
  }
  ~PageLocked() { runtime.free_page_locked(data); }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;
  DeviceRuntime& runtime;
  std::byte* data;
};

struct Event {
  explicit Event(DeviceRuntime& of) : runtime(of), event(runtime.create_event(kDevice)) {}
  ~Event() { runtime.destroy_event(kDevice, event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void wait() const {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (!runtime.reached(kDevice, event)) {
      if (std::chrono::steady_clock::now() > deadline) throw std::string("an event is not reached");
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  DeviceRuntime& runtime;
  DeviceRuntime::Event event;
};

struct Stream {
  explicit Stream(DeviceRuntime& of)
      : runtime(of), stream(runtime.create_stream(kDevice)), done(of) {}
  ~Stream() { runtime.destroy_stream(kDevice, stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  void copy(const DeviceCopy& part) const { runtime.copy(kDevice, stream, part); }
  void copy_to_device(std::byte* to, const std::byte* from, std::size_t bytes) const {
    copy({.to = to,
          .from = from,
          .row_bytes = bytes,
          .direction = DeviceCopy::Direction::kToDevice});
  }
  void finish() const {
    runtime.record(kDevice, done.event, stream);
    done.wait();
  }
  DeviceRuntime& runtime;
  DeviceRuntime::Stream stream;
  Event done;
};

class DeviceChecks {
 public:
  DeviceChecks(DeviceRuntime& runtime,
               const std::function<std::shared_ptr<std::byte>(std::size_t)>& allocate)
      : runtime_(runtime), allocate_(allocate) {}

  ConformanceReport run() {
    check("page-locked memory is aligned to a page",
          [&] { that(reinterpret_cast<std::uintptr_t>(PageLocked(runtime_).data) % 4096 == 0); });
    check("what is copied to the device comes back", [&] {
      const Stream stream(runtime_);
      round_trip(stream, 0, kBytes);
    });
    check("ordinary host memory does too", [&] {
      const Stream stream(runtime_);
      const auto device = allocate_(kBytes);
      std::vector<std::byte> out = pattern(3, kBytes);
      std::vector<std::byte> in(kBytes);
      stream.copy_to_device(device.get(), out.data(), kBytes);
      stream.copy({.to = in.data(), .from = device.get(), .row_bytes = kBytes});
      stream.finish();
      that(in == out);
    });
    check("rows with gaps on either side", [&] { rows_with_gaps(); });
    check("what is copied on the device, with gaps", [&] { rows_on_device(); });
    check("an event without anything before it is reached", [&] {
      const Stream stream(runtime_);
      stream.finish();
    });
    check("an event that is recorded again is the later one", [&] {
      const Stream stream(runtime_);
      for (int turn = 0; turn < 5; ++turn) round_trip(stream, turn, kBytes);
    });
    check("a stream waits for an event of another one", [&] { streams_wait(); });
    check("what is enqueued runs after its stream is gone", [&] { destroyed_stream(); });
    check("the producer's stream takes events", [&] {
      Event event(runtime_);
      runtime_.record(kDevice, event.event, runtime_.producer_stream(kDevice));
      event.wait();
    });
    check("several threads use one stream", [&] { threads(); });
    return std::move(report_);
  }

 private:
  static std::vector<std::byte> pattern(int seed, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      out[i] = static_cast<std::byte>((i * 7 + i / 251 + static_cast<std::size_t>(seed)) % 256);
    return out;
  }

  static void that(bool holds) {
    if (!holds) throw std::string("the bytes are others");
  }

  void round_trip(const Stream& stream, int seed, std::size_t bytes) {
    const auto device = allocate_(bytes);
    const PageLocked out(runtime_);
    const PageLocked in(runtime_);
    const std::vector<std::byte> expected = pattern(seed, bytes);
    std::ranges::copy(expected, out.data);
    stream.copy_to_device(device.get(), out.data, bytes);
    stream.copy({.to = in.data, .from = device.get(), .row_bytes = bytes});
    stream.finish();
    that(std::equal(expected.begin(), expected.end(), in.data));
  }

  void rows_with_gaps() {
    constexpr std::size_t kRows = 37;
    constexpr std::size_t kRow = 100;
    constexpr std::size_t kWide = 164;
    const Stream stream(runtime_);
    const auto device = allocate_(kRows * kWide);
    const PageLocked out(runtime_);
    const PageLocked in(runtime_);
    const std::vector<std::byte> content = pattern(5, kRows * kWide);
    std::ranges::copy(content, out.data);
    std::memset(in.data, 0, kRows * kRow);
    // Copies everything in, then the rows' beginnings over the ends of others, then back without
    // gaps.
    stream.copy_to_device(device.get(), out.data, kRows * kWide);
    stream.copy({.to = device.get() + kWide - kRow,
                 .from = out.data,
                 .rows = kRows,
                 .row_bytes = kRow,
                 .to_pitch = kWide,
                 .from_pitch = kWide,
                 .direction = DeviceCopy::Direction::kToDevice});
    stream.copy({.to = in.data,
                 .from = device.get() + kWide - kRow,
                 .rows = kRows,
                 .row_bytes = kRow,
                 .to_pitch = kRow,
                 .from_pitch = kWide});
    stream.finish();
    for (std::size_t row = 0; row < kRows; ++row)
      that(std::equal(in.data + row * kRow, in.data + (row + 1) * kRow,
                      content.begin() + static_cast<std::ptrdiff_t>(row * kWide)));
  }

  void rows_on_device() {
    constexpr std::size_t kRows = 50;
    constexpr std::size_t kRow = 30;
    constexpr std::size_t kWide = 70;
    const Stream stream(runtime_);
    const auto first = allocate_(kRows * kWide);
    const auto second = allocate_(kRows * kRow);
    const PageLocked out(runtime_);
    const PageLocked in(runtime_);
    const std::vector<std::byte> content = pattern(6, kRows * kWide);
    std::ranges::copy(content, out.data);
    stream.copy_to_device(first.get(), out.data, kRows * kWide);
    stream.copy({.to = second.get(),
                 .from = first.get() + 1,
                 .rows = kRows,
                 .row_bytes = kRow,
                 .to_pitch = kRow,
                 .from_pitch = kWide,
                 .direction = DeviceCopy::Direction::kOnDevice});
    stream.copy({.to = in.data, .from = second.get(), .row_bytes = kRows * kRow});
    stream.finish();
    for (std::size_t row = 0; row < kRows; ++row)
      that(std::equal(in.data + row * kRow, in.data + (row + 1) * kRow,
                      content.begin() + static_cast<std::ptrdiff_t>(row * kWide + 1)));
  }

  void streams_wait() {
    const Stream first(runtime_);
    const Stream second(runtime_);
    const Event between(runtime_);
    const auto device = allocate_(kBytes);
    const PageLocked out(runtime_);
    const PageLocked in(runtime_);
    for (int turn = 0; turn < 5; ++turn) {
      const std::vector<std::byte> expected = pattern(turn, kBytes);
      std::ranges::copy(expected, out.data);
      first.copy_to_device(device.get(), out.data, kBytes);
      runtime_.record(kDevice, between.event, first.stream);
      runtime_.wait(kDevice, second.stream, between.event);
      second.copy({.to = in.data, .from = device.get(), .row_bytes = kBytes});
      second.finish();
      that(std::equal(expected.begin(), expected.end(), in.data));
    }
  }

  void destroyed_stream() {
    const auto device = allocate_(kBytes);
    const PageLocked out(runtime_);
    const PageLocked in(runtime_);
    const Event copied(runtime_);
    const std::vector<std::byte> expected = pattern(9, kBytes);
    std::ranges::copy(expected, out.data);
    {
      const Stream stream(runtime_);
      stream.copy_to_device(device.get(), out.data, kBytes);
      stream.copy({.to = in.data, .from = device.get(), .row_bytes = kBytes});
      runtime_.record(kDevice, copied.event, stream.stream);
    }
    copied.wait();
    that(std::equal(expected.begin(), expected.end(), in.data));
  }

  void threads() {
    const Stream stream(runtime_);
    std::vector<std::string> failures(4);
    {
      std::vector<std::jthread> running;
      for (std::size_t i = 0; i < failures.size(); ++i) {
        running.emplace_back([&, i] {
          failures[i] = outcome([&] {
            const Event done(runtime_);
            const auto device = allocate_(kBytes);
            const PageLocked out(runtime_);
            const PageLocked in(runtime_);
            const std::vector<std::byte> expected = pattern(static_cast<int>(i), kBytes);
            std::ranges::copy(expected, out.data);
            stream.copy_to_device(device.get(), out.data, kBytes);
            stream.copy({.to = in.data, .from = device.get(), .row_bytes = kBytes});
            runtime_.record(kDevice, done.event, stream.stream);
            done.wait();
            that(std::equal(expected.begin(), expected.end(), in.data));
          });
        });
      }
    }
    for (const std::string& failure : failures)
      if (!failure.empty()) throw failure;
  }

  template <typename Work>
  static std::string outcome(const Work& work) {
    try {
      work();
    } catch (const std::string& found) {
      return found;
    } catch (const std::exception& error) {
      return printable(error.what());
    }
    return {};
  }

  template <typename Work>
  void check(const char* what, const Work& work) {
    ++report_.checks;
    if (const std::string found = outcome(work); !found.empty())
      report_.problems.push_back(std::string(what) + ": " + found);
  }

  DeviceRuntime& runtime_;
  const std::function<std::shared_ptr<std::byte>(std::size_t)>& allocate_;
  ConformanceReport report_;
};

}  // namespace

ConformanceReport check_device(
    DeviceRuntime& runtime,
    const std::function<std::shared_ptr<std::byte>(std::size_t bytes)>& allocate) {
  return DeviceChecks(runtime, allocate).run();
}

}  // namespace dckpt
