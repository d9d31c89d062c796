#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/base/phase.h"

namespace DCKPT_API dckpt {

/// Duration and bytes of a phase, over all ranks.
struct PhaseReport {
  double seconds = 0;       ///< time of the slowest rank
  double median = 0;        ///< median time in seconds
  double minimum = 0;       ///< shortest time in seconds
  int slowest_rank = 0;     ///< the lowest if several are slowest
  std::uint64_t bytes = 0;  ///< sum over all ranks

  /// Returns the rate of the job: all bytes in the time of the slowest rank. 0 if nothing was
  /// measured.
  double bytes_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
  friend bool operator==(const PhaseReport&, const PhaseReport&) = default;
};
constexpr auto fields(const PhaseReport*) {
  using P = PhaseReport;
  return std::tuple(
      Field("seconds", &P::seconds, "Seconds of the slowest rank."),
      Field("median", &P::median, "Median of the ranks, in seconds."),
      Field("minimum", &P::minimum, "Seconds of the fastest rank."),
      Field("slowest_rank", &P::slowest_rank, "The slowest rank, the lowest of several."),
      Field("bytes", &P::bytes, "Bytes of all ranks; 0 for phases that count none."));
}

/// Returns "1.5 GiB/s", or "" if nothing was measured.
[[nodiscard]] std::string rate_text(const PhaseReport& report);

/// Returns "write 7.90 s", or with bytes "write 7.90 s, 1.5 GiB/s".
std::string to_string(Phase phase, const PhaseReport& report);

}  // namespace dckpt
