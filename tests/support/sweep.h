#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/support/random.h"

namespace dckpt::testing {

/// The operations at which a sweep interrupts a job: with DCKPT_SWEEP=all every one, else a sample
/// with random steps of at most `longest`, eight times as long under a sanitizer.
class Sweep {
 public:
  explicit Sweep(std::int64_t longest, std::uint64_t first = 1)
      : longest_(takes_all() ? 1 : longest * kSanitizerFactor), at_(first) {}

  std::uint64_t at() const noexcept { return at_; }
  void advance() { at_ += static_cast<std::uint64_t>(random_.between(1, longest_)); }
  /// Returns a text for SCOPED_TRACE.
  std::string trace() const { return random_.trace(0) + ", operation " + std::to_string(at_); }

 private:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr std::int64_t kSanitizerFactor = 8;
#else
  static constexpr std::int64_t kSanitizerFactor = 1;
#endif
  static bool takes_all() {
    const char* const text = std::getenv("DCKPT_SWEEP");
    return text != nullptr && text == std::string_view("all");
  }

  Random random_;
  std::int64_t longest_;
  std::uint64_t at_;
};

}  // namespace dckpt::testing
