#include "dist_checkpointing/save/save_report.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dist_checkpointing/ranks/rank_phases.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire_fields.h"

namespace dckpt {

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
  sum.plan = over_ranks(ranks, &RankSaveReport::plan);
  sum.stage = over_ranks(ranks, &RankSaveReport::stage);
  sum.copy = over_ranks(ranks, &RankSaveReport::copy);
  sum.write = over_ranks(ranks, &RankSaveReport::write);
  sum.sync = over_ranks(ranks, &RankSaveReport::sync);
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
  return message_of(report);
}

RankSaveReport decode_rank_report(ByteView bytes) {
  return read_message<RankSaveReport>(bytes, "a rank's report of its part of a save");
}

Bytes encode(const SaveReport& report) {
  return message_of(report);
}

SaveReport decode_save_report(ByteView bytes) {
  const std::string what = "the report of a save from rank 0";
  const auto report = read_message<SaveReport>(bytes, what);
  if (!std::isfinite(report.seconds)) WireReader({}, what).malformed("a time is no number");
  return report;
}

}  // namespace dckpt
