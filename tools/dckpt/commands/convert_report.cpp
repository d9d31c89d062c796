#include "tools/dckpt/commands/convert_report.h"

#include <algorithm>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/commands/held_bytes.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

std::string labeled(const Finding& finding) {
  return str_format("{}: {}", name_of(kSeverityNames, finding.severity),
                    safe_message(finding.message));
}

/// Returns a note of a step with the severity of its finding.
std::string labeled(const ConvertReport& report, const std::string& note) {
  const auto finding = std::ranges::find(report.findings, note, &Finding::message);
  return finding != report.findings.end() ? labeled(*finding) : "note: " + safe_message(note);
}

/// Prints the numbered steps of a conversion.
void print_steps(const ConvertReport& report) {
  Table table({{"", Table::Align::kRight}, {""}, {""}}, "");
  for (std::size_t i = 0; i < report.steps.size(); ++i) {
    const ConversionStep& step = report.steps[i];
    table.add({std::to_string(i + 1), step.name, safe_message(step.does)});
    for (const std::string& note : step.notes) table.add({"", "", labeled(report, note)});
  }
  table.print();
}

}  // namespace

void print_report(const ConvertReport& report, bool dry_run, bool explain, bool cut_for_ranks) {
  Table table({{""}, {""}}, "");
  table.add({"from", str_format("{} ({})", shown(report.source), shown(report.from))});
  table.add({"to", str_format("{} ({})", shown(report.destination), shown(report.to))});
  table.add({"content",
             str_format("{} of {}, {}{}", counted(report.tensors, "tensor"),
                        human_bytes(report.bytes), counted(report.objects, "object"),
                        report.left_out > 0 ? str_format("; {} left out", grouped(report.left_out))
                                            : "")});
  table.add({"chunks", str_format("{} before, {} after, in {}{} for {}{}",
                                  grouped(report.chunks_before), grouped(report.chunks_after),
                                  grouped(report.files), report.files == 1 ? " file" : " files",
                                  grouped(static_cast<std::uint64_t>(report.ranks)),
                                  report.ranks == 1 ? " rank" : " ranks")});
  if (report.kept_files > 0)
    table.add({"resumed", str_format("{} of {} had been finished before",
                                     grouped(report.kept_files), counted(report.files, "file"))});
  if (report.workers)
    table.add({"workers",
               str_format("{} of {} done here, published {}", grouped(report.workers->units_here),
                          counted(report.workers->units, "unit"),
                          report.workers->published_here ? "here" : "by another one")});
  table.add({"on disk", std::string(dry_run ? "about " : "") + human_bytes(report.disk_bytes)});
  table.print();
  if (cut_for_ranks) print_held(report);
  if (explain) {
    print("\n");
    print_steps(report);
    print("\n");
  } else {
    for (const Finding& finding : report.findings) print(labeled(finding) + "\n");
  }
  print(dry_run ? styled(Style::kYellow, "dry run: nothing was written") + "\n"
                : styled(Style::kGreen, "written") + "\n");
}

}  // namespace dckpt::tool
