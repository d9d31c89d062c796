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

}  // namespace dckpt::testing
