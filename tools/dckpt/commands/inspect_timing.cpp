#include "tools/dckpt/commands/inspect_timing.h"

#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/save/phase_spans.h"
#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/pictures/waterfall.h"
#include "tools/dckpt/render/head_rows.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

std::string seconds_text(double seconds) {
  return str_format("{:.3f} s", seconds);
}

std::vector<TimeSpan> time_spans(const SaveReport& report) {
  std::vector<TimeSpan> spans;
  for (const PhaseSpan& span : phase_spans(report))
    spans.push_back(
        {std::string(name_of(kPhaseNames, span.phase)), span.start, span.fastest, span.slowest});
  return spans;
}

void print_waterfall(const SaveReport& report) {
  const PictureStyle style = picture_style();
  const Picture picture = waterfall(time_spans(report), style);
  if (picture.empty()) return;
  print("\n");
  print(picture);
  print(
      str_format("  Solid until the fastest rank was done, {} until the slowest. Copy and sync are "
                 "parts of write, drawn at its beginning and its end.\n",
                 style.unicode ? "shaded" : "dashed"));
}

}  // namespace

int show_timing(const CheckpointArgument& checkpoint, bool json) {
  const auto reader = checkpoint.open();
  const std::optional<SaveReport> report = find_report(reader->storage());
  if (!report)
    throw CheckpointError(ErrorCode::kIncomplete,
                          str_format("the checkpoint keeps no report of its save ({}); a save with "
                                     "save.report: true in its policy writes one",
                                     kReportFile),
                          {.file = checkpoint.resolved()});
  if (json) {
    print_json(to_json(*report));
    return kOk;
  }
  print(styled(Style::kBold, shown(checkpoint.resolved())) + "\n");
  HeadRows head;
  head.add("saved", str_format("{} in {} in {}", human_bytes(report->bytes),
                               counted(report->files, "file"), seconds_text(report->seconds)));
  head.add("plan", report->plan_cached ? "cached" : "not cached: " + shown(report->why_planned));
  head.add("engine", shown(report->engine));
  head.print();
  using Align = Table::Align;
  print("\n");
  Table table({{"PHASE"},
               {"MINIMUM", Align::kRight},
               {"MEDIAN", Align::kRight},
               {"MAXIMUM", Align::kRight},
               {"SLOWEST", Align::kRight},
               {"BYTES", Align::kRight},
               {"RATE", Align::kRight},
               {""}});
  for (const auto& [phase, member] : kSavePhases) {
    const PhaseReport& taken = (*report).*member;
    if (taken.seconds == 0) continue;
    const bool counts = taken.bytes > 0;
    const bool is_part = phase == Phase::kCopy || phase == Phase::kSync;
    table.add({std::string(name_of(kPhaseNames, phase)), seconds_text(taken.minimum),
               seconds_text(taken.median), seconds_text(taken.seconds),
               "rank " + std::to_string(taken.slowest_rank), counts ? human_bytes(taken.bytes) : "",
               counts ? rate_text(taken) : "", is_part ? "part of write" : ""});
  }
  table.print();
  print_waterfall(*report);
  return kOk;
}

}  // namespace dckpt::tool
