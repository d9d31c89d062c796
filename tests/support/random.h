#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace dckpt::testing {

/// Random numbers of a property test, the same on every run unless DCKPT_TEST_SEED is set.
class Random {
 public:
  Random() : seed_(seed_from_environment()), engine_(seed_) {}

  /// Returns a number from `low` to `high`, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  std::mt19937_64& engine() { return engine_; }

  /// Returns a text for SCOPED_TRACE, so that a failure can be replayed.
  std::string trace(int round) const {
    return "DCKPT_TEST_SEED=" + std::to_string(seed_) + " round " + std::to_string(round);
  }

 private:
  static std::uint64_t seed_from_environment() {
    const char* const text = std::getenv("DCKPT_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 20240229;
  }
  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

/// Returns whether sweeps take each point and many samples, which is long: for a hunt by hand.
inline bool sweeps_all() {
  const char* const text = std::getenv("DCKPT_SWEEP");
  return text != nullptr && text == std::string("all");
}

/// The points at which a sweep injects its faults, one after the other: all of them with
/// DCKPT_SWEEP=all, else a sample with gaps of 1 to `longest_gap` points. A build with a sanitizer,
/// which is slow and looks for other errors than the sweep, takes a sample where a release takes
/// all.
class Sweep {
 public:
  explicit Sweep(std::int64_t longest_gap = kIsSanitized ? 7 : 1)
      : longest_gap_(sweeps_all() ? 1 : longest_gap) {}

  /// Returns the point after `point`.
  template <typename Point>
  Point after(Point point) {
    return static_cast<Point>(point + static_cast<Point>(random_.between(1, longest_gap_)));
  }
  /// Returns a text for SCOPED_TRACE.
  template <typename Point>
  std::string trace(Point point) const {
    return random_.trace(static_cast<int>(point));
  }

 private:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
  static constexpr bool kIsSanitized =
      __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  static constexpr bool kIsSanitized = false;
#endif

  Random random_;
  std::int64_t longest_gap_;
};

}  // namespace dckpt::testing
