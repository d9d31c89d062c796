#include "mapping/planning/reshard.h"
#include "operations/convert/convert_options.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {

std::string to_json(const ConvertReport& report, bool dry_run) {
  const auto held = [](const HeldBytes& file) {
    return Value::dict(
        {{"file", file.file}, {"rank", or_none(rank_of_file(file.file))}, {"bytes", file.bytes}});
  };
  const auto step = [](const ConversionStep& done) {
    return Value::dict(
        {{"name", done.name}, {"does", done.does}, {"notes", json_list(done.notes)}});
  };
  const auto shared = [](const PoolReport& workers) {
    return Value::dict({{"units", workers.units},
                        {"units_here", workers.units_here},
                        {"published_here", workers.published_here}});
  };
  return json_text(
      Value::dict({{"source", report.source},
                   {"destination", report.destination},
                   {"from", report.from},
                   {"to", report.to},
                   {"dry_run", dry_run},
                   {"tensors", report.tensors},
                   {"objects", report.objects},
                   {"left_out", report.left_out},
                   {"lost", json_list(report.lost)},
                   {"chunks_before", report.chunks_before},
                   {"chunks_after", report.chunks_after},
                   {"bytes", report.bytes},
                   {"files", report.files},
                   {"kept_files", report.kept_files},
                   {"disk_bytes", report.disk_bytes},
                   {"ranks", report.ranks},
                   {"held", Value::dict({{"before", json_list(report.held_before, held)},
                                         {"after", json_list(report.held_after)}})},
                   {"workers", report.workers ? shared(*report.workers) : Value()},
                   {"steps", json_list(report.steps, step)},
                   {"findings", to_value(report.findings)},
                   {"remarks", json_list(messages_of(report.findings))}}));
}

}  // namespace dckpt
