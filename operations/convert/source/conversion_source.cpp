#include "operations/convert/source/conversion_source.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "configs/policy/option_rules.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "migration/maps/mapped_reader.h"
#include "migration/megatron_fsdp/megatron_fsdp.h"
#include "operations/convert/conversion_steps.h"
#include "operations/convert/source/adapter_to_merge.h"
#include "operations/convert/source/other_models.h"
#include "operations/inspect/diff.h"
#include "strategies/registry/registry.h"
#include "strategies/safetensors/hub_cache.h"

namespace dckpt {
namespace {

/// Returns the folder whose config.json identifies the model.
std::shared_ptr<const Storage> model_files_of(const ConvertOptions& options) {
  if (!options.target.model_files) return nullptr;
  if (!options.target.model_files->is_directory())
    throw CheckpointError(ErrorCode::kIo, "there is no such folder of a model's files",
                          {.file = options.target.model_files->display()});
  return with_hub_cache(options.target.model_files->directory());
}

/// Opens the source, combined with other models; `report` gets the steps.
std::unique_ptr<CheckpointReader> open_plain(const Location& source, const ConvertOptions& options,
                                             ConvertReport& report) {
  const auto open = [&] {
    return open_checkpoint(
        source, {.iteration = options.source.iteration, .strategy = options.source.strategy});
  };
  return combined(open(), open, options, report);
}

/// Opens the checkpoint that a map is applied to, with Megatron-FSDP's keys as Megatron-Core's,
/// which maps know.
View open_for_map(const Location& source, const ConvertOptions& options, ConvertReport& report) {
  auto reader = open_plain(source, options, report);
  if (!reader->info().conventions.megatron_fsdp) return {std::move(reader)};
  return from_megatron_fsdp(std::move(reader));
}

/// Returns whose keys readers of the requested format look for; empty if either's will do.
std::optional<KeyNames> keys_of_target(const ConvertOptions& options) {
  for (const SaveStrategyEntry& format : save_strategies()) {
    if (format.name != options.target.strategy) continue;
    if (format.conventions.model_folder) return KeyNames::kHf;
    if (format.conventions.megatron_keys) return KeyNames::kMegatron;
  }
  return std::nullopt;
}

/// Goes through the map and back, and throws for tensors that differ afterwards. Padding of a
/// vocabulary is not compared: it has no meaning and is lost. Returns the progress of the following
/// steps, which continues from this one's.
Progress check_round_trip(const MapRequest& request, const MappedSource& source,
                          std::uint64_t memory, const ConvertOptions& options) {
  const auto [before, after] = round_trip_of(request, source);
  std::uint64_t bytes = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    require_not_stopped(options);
    bytes = done;
    if (options.progress) options.progress(done, options.dry_run ? total : 2 * total);
  };
  const DiffReport found =
      diff(*before, *after,
           {.common = false,
            .threads = options.limits.read_threads.value_or(options.limits.io.threads),
            .memory = memory,
            .progress = progress});
  ProblemList problems;
  for (const Difference& difference : found.differences)
    problems.add(str_format("{}: {}{}", quote(difference.key), to_string(difference.kind),
                            difference.a.empty() || difference.b.empty()
                                ? std::string()
                                : str_format(" {} became {}", difference.a, difference.b)));
  problems.raise_if_any(ErrorCode::kMismatch,
                        "through the map and back, these are not what they were:");
  if (!options.progress) return {};
  return [bytes, show = options.progress](std::uint64_t done, std::uint64_t total) {
    show(bytes + done, bytes + total);
  };
}

/// Returns a finding with the keys that patterns left out before the map; `report` counts them.
Findings left_out(const MappedSource& source, ConvertReport& report) {
  std::vector<std::string> gone = source.gone_tensors;
  gone.insert(gone.end(), source.gone_objects.begin(), source.gone_objects.end());
  report.left_out += gone.size();
  if (gone.empty()) return {};
  return {{FindingCode::kKeysLeftOut,
           str_format("left out before the map: {}, {}", counted(gone.size(), "key"),
                      quoted_list(gone)),
           gone}};
}

}  // namespace

bool has_map(const ConvertOptions& options) {
  return !options.source.map.name.empty() && options.source.map.name != kNoMap;
}

void require_not_stopped(const ConvertOptions& options) {
  if (!options.stop.stop_requested()) return;
  throw CheckpointError(
      ErrorCode::kCancelled,
      options.target.resume
          ? "the conversion was stopped before it was complete; what it had finished "
            "is kept, and --resume goes on with it"
          : "the conversion was stopped before it was complete; what it had begun is "
            "removed");
}

OpenedSource open_source(const Location& source, const ConvertOptions& options,
                         ConvertReport& report) {
  require_rules(
      Call::kConvert,
      {.save = {.io = options.limits.io},
       .load = {.strategy = options.source.strategy,
                .map = options.source.map,
                .threads = options.limits.read_threads.value_or(options.limits.io.threads)}},
      nullptr);
  OpenedSource opened{.reader = nullptr,
                      .keys = options.source.keys,
                      .source_keys = {},
                      .progress = options.progress,
                      .memory = options.limits.memory};
  const std::optional<AdapterToMerge> adapter = adapter_to_merge(options);
  if (adapter) opened.memory -= adapter->memory;
  if (!has_map(options)) {
    opened.reader = open_plain(source, options, report);
    if (adapter) opened.reader = merge(std::move(opened.reader), *adapter, report);
    return opened;
  }
  ConvertReport before;  // report of the steps before the map, which may run several times
  const bool merge_first =
      adapter && adapter->is_for(open_plain(source, options, before)->metadata());
  const std::shared_ptr<const Storage> files = model_files_of(options);
  Findings said;
  const MapRequest request{.open =
                               [&] {
                                 before = {};
                                 View view = open_for_map(source, options, before);
                                 said = std::move(view.findings);
                                 if (!merge_first) return std::move(view.reader);
                                 return merge(std::move(view.reader), *adapter, before);
                               },
                           .map = options.source.map,
                           .keys = options.source.keys,
                           .model_files = files.get(),
                           .to = keys_of_target(options)};
  MappedSource mapped = map_source(request);
  if (options.checks.round_trip)
    opened.progress = check_round_trip(request, mapped, opened.memory, options);
  const bool to_hf = mapped.report.keys.sides.to == KeyNames::kHf;
  opened.usual_format = to_hf ? "hf" : "torch_dist";
  std::ranges::move(before.steps, std::back_inserter(report.steps));
  append(report.findings, std::move(before.findings));
  Findings findings = std::move(said);
  append(findings, left_out(mapped, report));
  append(findings, std::move(mapped.report.findings));
  append(findings, probe_norms(*mapped.reader, mapped.report.norms));
  if (!mapped.report.copies.copies.empty())
    append(findings, compare_copies(*request.open(), mapped.report.copies));
  add_step(report, "map",
           str_format("gives {} the keys of {} by the map {}",
                      counted(mapped.reader->metadata().tensors.size(), "tensor"),
                      to_hf ? "Hugging Face" : "Megatron", quote(mapped.report.map)),
           std::move(findings));
  opened.reader = std::move(mapped.reader);
  if (adapter && !merge_first) opened.reader = merge(std::move(opened.reader), *adapter, report);
  opened.keys = std::move(mapped.behind);
  opened.config = std::move(mapped.report.config);
  opened.source_keys = std::move(mapped.source_keys);
  return opened;
}

void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ChosenTarget& target, const ConvertOptions& options) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !options.source.map.name.empty())
    return;
  const auto& tensors = reader.metadata().tensors;
  if (std::ranges::none_of(tensors, [](const auto& tensor) {
        return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
      }))
    return;
  std::string fitting;
  ConvertReport unused;
  for (const std::string& map :
       fitting_maps(*open_for_map(source, options, unused).reader, model_files_of(options).get()))
    fitting += (fitting.empty() ? "--map " : " or --map ") + map;
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format("the keys are Megatron's, and transformers finds none of them; {}; --map none "
                 "insists on these keys",
                 fitting.empty() ? "no shipped map fits this model, so write one (docs/maps.md)"
                                 : "it has the keys and shapes of a model for " + fitting));
}

}  // namespace dckpt
