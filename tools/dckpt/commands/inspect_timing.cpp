#include "tools/dckpt/commands/inspect_timing.h"

#include <algorithm>
#include <optional>
#include <string>

#include "dist_checkpointing/save/phase_spans.h"
#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/head_rows.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

std::string seconds_text(double seconds) {
  return str_format("{:.3f} s", seconds);
}

const PhaseReport& report_of(Phase phase, const SaveReport& report) {
  const auto* const found =
      std::ranges::find(kSavePhases, phase, &decltype(kSavePhases)::value_type::first);
  return report.*found->second;
}

}  // namespace

int show_timing(CheckpointArgument checkpoint, bool json) {
  checkpoint.planner.clear();
  const auto reader = checkpoint.open();
  const std::optional<SaveReport> report = find_report(reader->storage());
  if (!report)
    throw_error(ErrorCode::kIncomplete, {.file = checkpoint.resolved()},
                "the checkpoint keeps no report of its save ({}); a save with "
                "save.report: true in its policy writes one",
                kReportFile);
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
               {"START", Align::kRight},
               {"FASTEST", Align::kRight},
               {"MEDIAN", Align::kRight},
               {"SLOWEST", Align::kRight},
               {"RANK", Align::kRight},
               {"BYTES", Align::kRight},
               {"RATE", Align::kRight}});
  for (const PhaseSpan& span : phase_spans(*report)) {
    const PhaseReport& taken = report_of(span.phase, *report);
    const bool counts = taken.bytes > 0;
    const bool is_part = span.phase == Phase::kCopy || span.phase == Phase::kSync;
    table.add({(is_part ? "  " : "") + std::string(name_of(kPhaseNames, span.phase)),
               seconds_text(span.start), seconds_text(span.fastest), seconds_text(taken.median),
               seconds_text(span.slowest), std::to_string(taken.slowest_rank),
               counts ? human_bytes(taken.bytes) : "", counts ? rate_text(taken) : ""});
  }
  table.print();
  return kOk;
}

}  // namespace dckpt::tool
