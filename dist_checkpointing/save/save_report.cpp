#include "dist_checkpointing/save/save_report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "dist_checkpointing/ranks/rank_phases.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

/// Visits every field, in the order of the message.
template <typename Report, typename Visit>
requires std::same_as<std::remove_const_t<Report>, SaveReport>
void visit_fields(Report& report, Visit&& visit) {
  visit(report.bytes);
  visit(report.files);
  visit(report.seconds);
  for (const auto& [phase, member] : kSavePhases) visit(report.*member);
  visit(report.plan_cached);
  visit(report.why_planned);
  visit(report.engine);
  visit(report.findings);
}

template <typename Report, typename Visit>
requires std::same_as<std::remove_const_t<Report>, RankSaveReport>
void visit_fields(Report& report, Visit&& visit) {
  visit(report.bytes);
  visit(report.files);
  for (auto* const phase : {&report.plan, &report.stage, &report.copy, &report.write, &report.sync})
    visit(*phase);
  visit(report.why_planned);
  visit(report.engine);
}

struct Encode {
  WireWriter writer;
  void operator()(std::uint64_t value) { writer.number(value); }
  void operator()(double value) { writer.number(std::bit_cast<std::uint64_t>(value)); }
  void operator()(bool value) { writer.number(value ? 1 : 0); }
  void operator()(const std::string& value) { writer.text(value); }
  void operator()(const Findings& value) { write_to(writer, value); }
  void operator()(const PhaseReport& value) { write_to(writer, value); }
  void operator()(const PhaseClock::Taken& value) { write_to(writer, value); }
};

struct Decode {
  WireReader reader;
  void operator()(std::uint64_t& value) { value = reader.number(); }
  void operator()(double& value) {
    value = std::bit_cast<double>(reader.number());
    if (!std::isfinite(value)) reader.malformed("a time is no number");
  }
  void operator()(bool& value) { value = reader.number(1) == 1; }
  void operator()(std::string& value) { value = reader.text(); }
  void operator()(Findings& value) { value = read_findings(reader); }
  void operator()(PhaseReport& value) { value = read_phase_report(reader); }
  void operator()(PhaseClock::Taken& value) { value = read_taken(reader); }
};

template <typename Report>
Bytes encoded(const Report& report) {
  Bytes bytes;
  Encode encode{WireWriter(bytes)};
  visit_fields(report, encode);
  return bytes;
}

template <typename Report>
Report decoded(ByteView bytes, const char* what) {
  Report report;
  Decode decode{WireReader(bytes, what)};
  visit_fields(report, decode);
  decode.reader.finish();
  return report;
}

PhaseReport phase_of(std::span<const RankSaveReport> ranks,
                     PhaseClock::Taken RankSaveReport::*phase) {
  std::vector<PhaseClock::Taken> taken;
  for (const RankSaveReport& rank : ranks) taken.push_back(rank.*phase);
  return over_ranks(taken);
}

}  // namespace

std::string to_string(const SaveReport& report) {
  std::string text = str_format("{} in {} in {:.2f} s ({}", human_bytes(report.bytes),
                                counted(report.files, "file"), report.seconds,
                                to_string(Phase::kPlan, report.plan));
  text += report.plan_cached ? ", cached" : ", not cached: " + report.why_planned;
  if (report.stage.bytes > 0) text += "; " + to_string(Phase::kStage, report.stage);
  return str_format("{}; {}{}, rank {} was the last; {})", text,
                    to_string(Phase::kWrite, report.write),
                    report.engine.empty() ? "" : ", " + report.engine, report.write.slowest_rank,
                    to_string(Phase::kPublish, {.seconds = report.publish.seconds}));
}

SaveReport sum_of(std::span<const RankSaveReport> ranks) {
  SaveReport sum;
  sum.plan = phase_of(ranks, &RankSaveReport::plan);
  sum.stage = phase_of(ranks, &RankSaveReport::stage);
  sum.copy = phase_of(ranks, &RankSaveReport::copy);
  sum.write = phase_of(ranks, &RankSaveReport::write);
  sum.sync = phase_of(ranks, &RankSaveReport::sync);
  std::vector<std::string> reasons;
  for (const RankSaveReport& one : ranks) {
    sum.bytes += one.bytes;
    sum.files += one.files;
    reasons.push_back(one.why_planned);
    if (sum.engine.empty())
      sum.engine = one.engine;
    else if (!one.engine.empty() && one.engine != sum.engine)
      sum.engine = "direct and buffered";
  }
  sum.why_planned = first_reason(reasons);
  return sum;
}

Bytes encode(const RankSaveReport& report) {
  return encoded(report);
}

RankSaveReport decode_rank_report(ByteView bytes) {
  return decoded<RankSaveReport>(bytes, "a rank's report of its part of a save");
}

Bytes encode(const SaveReport& report) {
  return encoded(report);
}

SaveReport decode_save_report(ByteView bytes) {
  return decoded<SaveReport>(bytes, "the report of a save from rank 0");
}

}  // namespace dckpt
