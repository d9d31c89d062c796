#pragma once

#include <cstdint>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/phase.h"

namespace DCKPT_API dckpt {

/// What a phase took, over all ranks.
struct PhaseReport {
  double seconds = 0;       ///< of the slowest rank
  double median = 0;        ///< seconds, too
  double minimum = 0;       ///< seconds, too
  int slowest_rank = 0;     ///< the lowest of several
  std::uint64_t bytes = 0;  ///< of all ranks

  /// Of the job: all bytes in the time of the slowest rank. 0 if nothing was measured.
  double bytes_per_second() const noexcept {
    return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  }
  friend bool operator==(const PhaseReport&, const PhaseReport&) = default;
};

/// "1.5 GiB/s"; empty if nothing was measured.
[[nodiscard]] std::string rate_text(const PhaseReport& report);

/// "write 7.90 s", and with bytes: "write 7.90 s, 1.5 GiB/s".
std::string to_string(Phase phase, const PhaseReport& report);

}  // namespace dckpt
