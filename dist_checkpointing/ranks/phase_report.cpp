#include "dist_checkpointing/ranks/phase_report.h"

#include <algorithm>
#include <cstdint>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr double kFastest = 1e18;  // bytes per second; fits 64 bits

}  // namespace

std::string rate_text(const PhaseReport& report) {
  const double rate = std::min(report.bytes_per_second(), kFastest);
  return rate > 0 ? human_bytes(static_cast<std::uint64_t>(rate)) + "/s" : "";
}

std::string to_string(Phase phase, const PhaseReport& report) {
  const std::string rate = rate_text(report);
  return str_format("{} {:.2f} s{}{}", name_of(kPhaseNames, phase), report.seconds,
                    rate.empty() ? "" : ", ", rate);
}

}  // namespace dckpt
