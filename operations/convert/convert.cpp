#include "operations/convert/convert.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/counted.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "operations/convert/carry_out.h"
#include "operations/convert/conversion_facts.h"
#include "operations/convert/conversion_findings.h"
#include "operations/convert/conversion_request.h"
#include "operations/convert/conversion_rules.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/planned_copy.h"
#include "operations/convert/source/conversion_source.h"
#include "operations/convert/source/copy_source.h"
#include "operations/inspect/inspect.h"

namespace dckpt {
namespace {

/// Returns the bytes in each data file; parts that are made while reading are in none.
std::vector<HeldBytes> held_by_files(const Metadata& metadata) {
  std::vector<HeldBytes> held(metadata.files.size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i].file = metadata.files[i];
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (std::size_t i = 0; i < tensor.places.size(); ++i)
      held[tensor.places[i].file].bytes +=
          static_cast<std::uint64_t>(numel(tensor.chunks.sizes(i))) *
          item_size(tensor.properties.dtype);
  }
  for (const BytesStorageMetadata& object : metadata.objects)
    held[object.place.file].bytes += object.place.length;
  std::erase_if(held, [](const HeldBytes& file) { return !is_stored_file(file.file); });
  return held;
}

/// Throws if a config.json would go along that must not differ from the tensors, and does.
void require_right_config(Findings findings) {
  std::erase_if(findings,
                [](const Finding& finding) { return finding.severity != Severity::kError; });
  refuse(findings, {FindingCode::kConfigDiffers},
         "nothing was written, since transformers would make up what differs, or fail; correct a "
         "copy of config.json and give its folder with --model-files, or let this one go along "
         "with --allow-other-config:");
}

/// Tells whether records that are no plain tensors may be copied as they are.
bool keeps_records(const Draft& draft, const ConversionRequest& request) {
  return !request.mapped && !request.optimizer.sharding &&
         (draft.reader->info().conventions.megatron_fsdp ||
          !draft.target.format->conventions.megatron_fsdp);
}

std::uint64_t bytes_on_disk(const Location& checkpoint) {
  std::uint64_t bytes = 0;
  for (const FileSummary& file : list_files(*checkpoint.directory())) bytes += file.bytes;
  return bytes;
}

void choose_format(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  draft.target = choose_target(*draft.reader, report.source, draft.usual_format, request.target,
                               request.optimizer);
  report.to = draft.target.format->name;
  const std::string same = report.to == report.from ? ", as the source has it" : "";
  add_step(report, "format", str_format("chooses {}{}", quote(report.to), same),
           std::exchange(draft.target.findings, {}));
}

PlannedCopy plan(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  if (!request.optimizer.sharding) require_resumable_optimizer(draft.contents, draft.target);
  PlannedCopy copy = plan_copy(std::move(draft.contents), std::move(draft.target),
                               std::move(draft.folder), request.target.ranks);
  Findings findings = describe(copy, draft.reader->metadata(), report);
  measure(copy, report);
  add_step(report, "plan",
           str_format("{} {} for {}, in {}", request.target.ranks ? "cuts" : "takes",
                      counted(report.chunks_after, "chunk"), counted(copy.items.size(), "rank"),
                      counted(report.files, "file")),
           std::move(findings));
  require_none(request.checks.error_on, report.findings);
  require_right_config(report.findings);
  return copy;
}

void write(const CopyJob& job, std::uint64_t memory, ConvertReport& report) {
  Findings findings = carry_out(job, report);
  add_step(report, "write",
           str_format("copies {} within {} of memory, {}", human_bytes(bytes_of(job.copy.items)),
                      human_bytes(memory),
                      job.checks.source ? "compared with the checksums of the source"
                                        : "not compared with checksums"),
           std::move(findings));
  if (!job.dry_run) report.disk_bytes = bytes_on_disk(job.destination);
}

ConvertReport carried_out(const Route& route, const ConversionRequest& request) {
  require_outside(route.from, route.to);
  ConvertReport report;
  report.source = route.from.display();
  report.destination = route.to.display();
  Draft draft = open_source(route, request, report);
  take_source_steps(draft, request, report);
  report.held_before = held_by_files(draft.reader->metadata());
  report.from = draft.reader->info().format;
  choose_format(draft, request, report);
  require_target_rules(draft, request);
  const bool keeps = keeps_records(draft, request);
  const CopyMemory memory = share_memory(request.limits.io, draft.memory, request.limits.staging,
                                         draft.reader->metadata());
  draft.target.save.io = memory.io;

  take_target_steps(draft, request, report);
  PlannedCopy copy = plan(draft, request, report);
  const CopyJob job{.copy = copy,
                    .reader = *draft.reader,
                    .destination = route.to,
                    .checks = request.checks,
                    .workers = request.workers,
                    .dry_run = request.dry_run,
                    .resume = request.target.resume,
                    .memory = memory,
                    .readers = request.readers,
                    .watch = route.watch,
                    .facts = conversion_facts(route, request, copy),
                    .keeps_records = keeps,
                    .progress = draft.progress,
                    .go_on = request.go_on};
  write(job, request.limits.memory, report);
  return report;
}

}  // namespace

ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options) try {
  require_target_name(destination);
  require_conversion_rules(options);
  const Location found = resolve_checkpoint(source, {.iteration = options.source.iteration});
  const Route route = watched_route(found, destination);
  const ConversionRequest request = request_of(options, route);
  return carried_out(route, request);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
