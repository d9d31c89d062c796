#include "dist_checkpointing/ranks/rank_phases.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/wire_fields.h"

namespace dckpt {
namespace {

void check_seconds(const WireReader& reader, std::initializer_list<double> times) {
  for (const double seconds : times) {
    if (!std::isfinite(seconds) || seconds < 0) reader.malformed("a time is negative or no number");
  }
}

}  // namespace

PhaseReport over_ranks(std::span<const PhaseClock::Taken> ranks) {
  if (ranks.empty()) return {};
  PhaseReport report;
  std::vector<double> seconds;
  for (const PhaseClock::Taken& rank : ranks) {
    seconds.push_back(rank.seconds);
    report.bytes += rank.bytes;
  }
  report.slowest_rank = static_cast<int>(std::ranges::max_element(seconds) - seconds.begin());
  std::ranges::sort(seconds);
  const std::size_t middle = seconds.size() / 2;
  report.seconds = seconds.back();
  report.minimum = seconds.front();
  report.median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
  return report;
}

std::string first_reason(std::span<const std::string> ranks) {
  const auto first = std::ranges::find_if_not(ranks, &std::string::empty);
  if (first == ranks.end()) return "";
  const bool everywhere =
      std::ranges::all_of(ranks, [&](const std::string& reason) { return reason == *first; });
  return (everywhere ? "" : str_format("rank {}: ", first - ranks.begin())) + *first;
}

void read_from(WireReader& reader, PhaseClock::Taken& taken) {
  read_fields(reader, taken);
  check_seconds(reader, {taken.seconds});
}

void read_from(WireReader& reader, PhaseReport& report) {
  read_fields(reader, report);
  check_seconds(reader, {report.seconds, report.median, report.minimum});
  if (report.slowest_rank < 0) reader.malformed("the number of a rank is too large");
}

}  // namespace dckpt
