#include "dist_checkpointing/save/save_report.h"

#include <algorithm>
#include <bit>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt {
namespace {

std::string phase_text(const char* name, const SaveReport::Phase& phase) {
  return str_format("{} {:.2f} s", name, phase.seconds);
}

std::string rate_text(const SaveReport::Phase& phase) {
  return phase.seconds > 0
             ? str_format(", {}/s",
                          human_bytes(static_cast<std::uint64_t>(phase.bytes_per_second())))
             : "";
}

/// Every field, in the order of the message.
template <typename Report, typename Visit>
void visit_fields(Report& report, Visit&& visit) {
  visit(report.bytes);
  visit(report.files);
  visit(report.seconds);
  for (auto* const phase : {&report.plan, &report.stage, &report.write, &report.publish}) {
    visit(phase->seconds);
    visit(phase->bytes);
  }
  visit(report.slowest_rank);
  visit(report.plan_cached);
  visit(report.why_planned);
  visit(report.engine);
}

struct Encode {
  WireWriter writer;
  void operator()(std::uint64_t value) { writer.number(value); }
  void operator()(double value) { writer.number(std::bit_cast<std::uint64_t>(value)); }
  void operator()(int value) { writer.number(static_cast<std::uint64_t>(value)); }
  void operator()(bool value) { writer.number(value ? 1 : 0); }
  void operator()(const std::string& value) { writer.text(value); }
};

struct Decode {
  WireReader reader;
  void operator()(std::uint64_t& value) { value = reader.number(); }
  void operator()(double& value) { value = std::bit_cast<double>(reader.number()); }
  void operator()(int& value) { value = static_cast<int>(reader.number(INT32_MAX)); }
  void operator()(bool& value) { value = reader.number(1) == 1; }
  void operator()(std::string& value) { value = reader.text(); }
};

}  // namespace

std::string to_string(const SaveReport& report) {
  std::string text = str_format("{} in {}{} in {:.2f} s (", human_bytes(report.bytes), report.files,
                                report.files == 1 ? " file" : " files", report.seconds);
  text += phase_text("plan", report.plan) +
          (report.plan_cached ? ", cached" : ", not cached: " + report.why_planned);
  if (report.stage.bytes > 0) text += phase_text("; stage", report.stage) + rate_text(report.stage);
  text += str_format("{}{}{}, rank {} was the last", phase_text("; write", report.write),
                     rate_text(report.write), report.engine.empty() ? "" : ", " + report.engine,
                     report.slowest_rank);
  return str_format("{}{})", text, phase_text("; publish", report.publish));
}

SaveReport sum_of(std::span<const SaveReport> ranks) {
  SaveReport sum;
  for (const SaveReport& one : ranks) {
    sum.bytes += one.bytes;
    sum.files += one.files;
    sum.plan.seconds = std::max(sum.plan.seconds, one.plan.seconds);
    sum.stage = {std::max(sum.stage.seconds, one.stage.seconds), sum.stage.bytes + one.stage.bytes};
    if (one.write.seconds > sum.write.seconds) sum.slowest_rank = one.slowest_rank;
    sum.write = {std::max(sum.write.seconds, one.write.seconds), sum.write.bytes + one.write.bytes};
    if (sum.engine.empty())
      sum.engine = one.engine;
    else if (!one.engine.empty() && one.engine != sum.engine)
      sum.engine = "direct and buffered";
  }
  const auto first =
      std::ranges::find_if(ranks, [](const SaveReport& one) { return !one.why_planned.empty(); });
  if (first == ranks.end()) return sum;
  const bool everywhere = std::ranges::all_of(
      ranks, [&](const SaveReport& one) { return one.why_planned == first->why_planned; });
  sum.why_planned =
      (everywhere ? "" : str_format("rank {}: ", first - ranks.begin())) + first->why_planned;
  return sum;
}

Bytes encode_save_report(const SaveReport& report) {
  Bytes bytes;
  Encode encode{WireWriter(bytes)};
  visit_fields(report, encode);
  return bytes;
}

SaveReport decode_save_report(ByteView bytes) {
  SaveReport report;
  Decode decode{WireReader(bytes, "the report of a save from rank 0")};
  visit_fields(report, decode);
  decode.reader.finish();
  return report;
}

}  // namespace dckpt
