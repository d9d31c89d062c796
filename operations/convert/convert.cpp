#include "operations/convert/convert.h"

#include <algorithm>
#include <utility>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/planning/rearrange.h"
#include "operations/convert/conversion_facts.h"
#include "operations/convert/conversion_rules.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/convert_target.h"
#include "operations/convert/copy_contents.h"
#include "operations/convert/interrupted.h"
#include "operations/convert/model/model_folder.h"
#include "operations/convert/planned_copy.h"
#include "operations/convert/source/conversion_source.h"
#include "operations/convert/source/copy_source.h"
#include "operations/convert/source/source_check.h"
#include "operations/convert/workers/pooled_copy.h"
#include "operations/convert/write_copy.h"
#include "operations/inspect/inspect.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/hidden_sibling.h"

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

/// Megatron 0.8 to 0.15 resume from flattened state beside a common.pt, and from nothing else.
void require_resumable(const CopyContents& contents, const ChosenTarget& target,
                       const ConvertOptions& options) {
  const std::string sharding = optimizer_sharding(contents.common);
  if (options.optimizer.sharding || !target.format->conventions.megatron_keys ||
      sharding != name_of(kOptimizerShardingNames, OptimizerSharding::kFullyShardedModelSpace) ||
      std::ranges::none_of(contents.metadata.tensors, [](const TensorStorageMetadata& tensor) {
        return tensor.flattened_shape && is_optimizer_key(tensor.key);
      }))
    return;
  const bool newest = target.save.compat == Compat::kMegatron019;
  if (!newest && target.save.flattened == FlattenedForm::kMegatron) return;
  if (!target.format->capabilities.flattened_form && !newest) return;  // zarr, which has no other
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format(
          "Megatron-Core 0.8 to 0.15 resume from the source's flattened optimizer state, and no "
          "release would from {}; --optimizer fully_reshardable makes what {} and newer resume "
          "from, and without {} it stays what 0.8 to 0.15 do (--exclude 'optimizer.*' takes the "
          "model alone)",
          newest ? "it with a common state that is an object" : "its boxes",
          newest ? "0.19" : "0.15", newest ? "--compat megatron-0.19" : "--flattened boxes"));
}

/// Throws if there are findings that `errors` names.
void require_none(const std::vector<FindingCode>& errors, const Findings& findings) {
  refuse(findings, errors,
         "findings of these kinds are to be errors (--error-on, or error_on of the policy), so "
         "nothing was written:");
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

/// Tells why there is nothing to resume.
std::string why_none_left(const Location& destination) {
  const std::vector<std::string> elsewhere = attempts_elsewhere(destination);
  if (elsewhere.empty()) return "no interrupted conversion has left anything";
  HiddenSibling kept = parse_hidden_sibling(elsewhere.front()).value_or(HiddenSibling{});
  kept.purpose = "interrupted";
  return str_format(
      "{} may still be written by another host or container; if that one has ended, as when this "
      "host was restarted, rename it to {} and resume again",
      quoted_list(elsewhere), quote(to_string(kept)));
}

/// Returns what an interrupted conversion has left for this one, and notes if there is nothing.
std::optional<Interrupted> left_by_another(const PooledCopy& work, Findings& findings) {
  if (!work.options.target.resume) return std::nullopt;
  require_resumable(work.copy, work.destination, "--resume");
  std::optional<Interrupted> left = find_interrupted(work.destination, work.facts, work.options);
  if (!left)
    findings.push_back(
        {FindingCode::kNoEffect, "nothing to resume: " + why_none_left(work.destination)});
  require_none(work.options.checks.error_on, findings);
  return left;
}

/// Writes the copy in a pool of workers, `pool`.
void carry_out_together(const PooledCopy& work, const Location& pool, ConvertReport& report) {
  ConvertOptions pooled = work.options;
  pooled.workers.directory = pool;
  share_copy({work.copy, work.reader, work.destination, pooled, work.memory, work.watch, work.facts,
              work.keeps_records, work.progress, work.go_on},
             report);
}

/// Writes the copy alone, or checks what a dry run checks. `left`: as WriteSteps::left.
void carry_out_alone(const PooledCopy& work, const std::string& left, ConvertReport& report) {
  const auto& [copy, reader, destination, options, memory, watch, facts, keeps_records, progress,
               go_on] = work;
  const int readers = options.limits.read_threads.value_or(options.limits.io.threads);
  SourceCheck check(
      reader, options.checks.source,
      manifest_to_compare(reader, copy.contents, options.checks.source, options.checks.integrity),
      watch);
  if (options.dry_run) {
    if (options.checks.integrity) check.check_manifest(readers);
    return;
  }
  CopySource from(reader, copy.contents, check, *copy.target.format, memory, progress,
                  bytes_of(copy.items), go_on);
  write_copy(copy, destination, from,
             {.writers = memory.io.threads,
              .resume = options.target.resume,
              .left = left,
              .facts = facts,
              .check_source =
                  [&, stop = go_on] {
                    check.check_rest(readers, stop);
                    check.check_manifest(readers);
                  },
              .go_on = go_on},
             report);
}

/// Carries the conversion out, or checks what a dry run checks. Returns the findings of writing.
Findings carry_out(const PooledCopy& work, ConvertReport& report) {
  const ConvertOptions& options = work.options;
  Findings findings;
  const std::optional<Interrupted> left = left_by_another(work, findings);
  if (left) report.kept_files = left->files;
  const std::optional<Location> pool = left && left->pool ? left->pool : options.workers.directory;
  if (pool && !options.dry_run) {
    carry_out_together(work, *pool, report);
    if (left && left->pool && parse_hidden_sibling(pool->name())) remove_pool(*pool, true);
  } else {
    if (!options.dry_run)
      require_space(work.destination,
                    report.disk_bytes - std::min(report.disk_bytes, left ? left->bytes : 0));
    const std::string directory = left ? left->directory : "";
    try {
      carry_out_alone(work, directory, report);
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kUnsupported || options.target.resume || options.dry_run ||
          !work.keeps_records || !keep_records(work.copy, work.reader))
        throw;
      require_none(options.checks.error_on, work.copy.contents.findings);
      carry_out_alone(work, directory, report);
    }
  }
  append(findings, std::exchange(work.copy.contents.findings, {}));
  return findings;
}

/// Tells whether records that are no plain tensors may be copied as they are.
bool keeps_records(const CheckpointReader& source, const ChosenTarget& target,
                   const ConvertOptions& options) {
  return !has_map(options) && !options.optimizer.sharding &&
         (source.info().conventions.megatron_fsdp || !target.format->conventions.megatron_fsdp);
}

std::uint64_t bytes_on_disk(const Location& checkpoint) {
  std::uint64_t bytes = 0;
  for (const FileSummary& file : list_files(*checkpoint.directory())) bytes += file.bytes;
  return bytes;
}

/// Returns the files of a checkpoint of rank folders that Megatron writes beside its folder.
std::vector<std::string> files_beside(const Location& checkpoint) {
  std::vector<std::string> files;
  if (checkpoint.name().empty()) return files;
  for (const FileInfo& entry : checkpoint.storage()->list("")) {
    if (glob_match("layer_wise_optimizer_*.pt", entry.name)) files.push_back("../" + entry.name);
  }
  return files;
}

void choose_format(Draft& draft, const ConvertOptions& options, ConvertReport& report) {
  draft.target = choose_target(*draft.reader, report.source, draft.usual_format, options);
  report.to = draft.target.format->name;
  const std::string same = report.to == report.from ? ", as the source has it" : "";
  add_step(report, "format", str_format("chooses {}{}", quote(report.to), same),
           std::exchange(draft.target.findings, {}));
}

PlannedCopy plan(Draft& draft, const ConvertOptions& options, ConvertReport& report) {
  PlannedCopy copy = plan_copy(std::move(draft.contents), std::move(draft.target),
                               std::move(draft.folder), options.target.ranks);
  Findings findings = describe(copy, draft.reader->metadata(), report);
  measure(copy, report);
  add_step(report, "plan",
           str_format("{} {} for {}, in {}", options.target.ranks ? "cuts" : "takes",
                      counted(report.chunks_after, "chunk"), counted(copy.items.size(), "rank"),
                      counted(report.files, "file")),
           std::move(findings));
  return copy;
}

void note_writing(const PlannedCopy& copy, const ConvertOptions& options, Findings findings,
                  ConvertReport& report) {
  add_step(report, "write",
           str_format("copies {} within {} of memory, {}", human_bytes(bytes_of(copy.items)),
                      human_bytes(options.limits.memory),
                      options.checks.source ? "compared with the checksums of the source"
                                            : "not compared with checksums"),
           std::move(findings));
}

Location watched(const Location& location, const std::shared_ptr<FileWatch>& watch) {
  return Location(watched_storage(location.storage(), watch), location.name());
}

/// Puts every location that the conversion reads from under the watch.
ConvertOptions watched(ConvertOptions options, const std::shared_ptr<FileWatch>& watch) {
  for (Location& model : options.source.average) model = watched(model, watch);
  for (Location& model : options.source.join) model = watched(model, watch);
  for (std::optional<Location>* const folder :
       {&options.source.merge_adapter, &options.target.model_files})
    if (*folder) *folder = watched(**folder, watch);
  return options;
}

ConvertReport convert_checkpoint(const Location& source, const Location& destination,
                                 const ConvertOptions& options,
                                 const std::shared_ptr<FileWatch>& watch) {
  require_outside(source, destination);
  ConvertReport report;
  report.source = source.display();
  report.destination = destination.display();
  Draft draft = open_source(source, options);
  draft.beside = files_beside(source);
  take_source_steps(draft, options, report);
  report.held_before = held_by_files(draft.reader->metadata());
  report.from = draft.reader->info().format;
  append(report.findings, draft.reader->info().findings);
  choose_format(draft, options, report);
  require_map_for_models(*draft.reader, draft.target, options);
  if (options.dry_run) require_free_name(destination, options.target.overwrite);
  const bool keeps = keeps_records(*draft.reader, draft.target, options);
  const CopyMemory memory = share_memory(options.limits.io, draft.memory, options.limits.staging,
                                         draft.reader->metadata());
  draft.target.save.io = memory.io;

  take_target_steps(draft, options, report);
  require_resumable(draft.contents, draft.target, options);
  PlannedCopy copy = plan(draft, options, report);
  require_none(options.checks.error_on, report.findings);
  require_right_config(report.findings);
  Findings written =
      carry_out({copy, *draft.reader, destination, options, memory, watch,
                 conversion_facts(source, options, copy.target, copy.folder, copy.items, *watch),
                 keeps, draft.progress, [&] { require_not_stopped(options); }},
                report);
  note_writing(copy, options, std::move(written), report);
  if (!options.dry_run) report.disk_bytes = bytes_on_disk(destination);
  return report;
}

/// Sets `flattened` to the value implied by the form of the optimizer state. Other formats have the
/// model's shapes, and Megatron flattens what it reads from them.
ConvertOptions with_flattened_form(ConvertOptions options) {
  if (options.optimizer.sharding == OptimizerSharding::kFullyShardedModelSpace &&
      (options.target.strategy.empty() ||
       find_save_strategy(options.target.strategy, options.target.version)
           .capabilities.flattened_form))
    options.optimizer.flattened = FlattenedForm::kMegatron;
  return options;
}

}  // namespace

ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options) try {
  require_target_name(destination);
  require_conversion_rules(options, nullptr);
  const auto watch = std::make_shared<FileWatch>();
  ConvertOptions to_do = watched(with_flattened_form(options), watch);
  std::optional<IterationName>& iteration = to_do.source.iteration;
  // It is resolved once: a tracker that moves on meanwhile must not lead to another checkpoint.
  const Location found = resolve_checkpoint(source, {.iteration = iteration});
  if (iteration && found.name() == iteration->directory()) iteration.reset();
  return convert_checkpoint(watched(found, watch), destination, to_do, watch);
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
