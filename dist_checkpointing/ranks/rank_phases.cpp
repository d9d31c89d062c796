#include "dist_checkpointing/ranks/rank_phases.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "mapping/base/format.h"

namespace dckpt {
namespace {

void write_seconds(WireWriter& writer, double seconds) {
  writer.number(std::bit_cast<std::uint64_t>(seconds));
}

double read_seconds(WireReader& reader) {
  const auto seconds = std::bit_cast<double>(reader.number());
  if (!std::isfinite(seconds) || seconds < 0) reader.malformed("a time is negative or no number");
  return seconds;
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

void write_to(WireWriter& writer, const PhaseClock::Taken& taken) {
  write_seconds(writer, taken.seconds);
  writer.number(taken.bytes);
}

PhaseClock::Taken read_taken(WireReader& reader) {
  const double seconds = read_seconds(reader);
  return {seconds, reader.number()};
}

void write_to(WireWriter& writer, const PhaseReport& report) {
  for (const double seconds : {report.seconds, report.median, report.minimum})
    write_seconds(writer, seconds);
  writer.number(static_cast<std::uint64_t>(report.slowest_rank));
  writer.number(report.bytes);
}

PhaseReport read_phase_report(WireReader& reader) {
  PhaseReport report;
  for (double* const seconds : {&report.seconds, &report.median, &report.minimum})
    *seconds = read_seconds(reader);
  report.slowest_rank = static_cast<int>(reader.number(INT32_MAX));
  report.bytes = reader.number();
  return report;
}

}  // namespace dckpt
