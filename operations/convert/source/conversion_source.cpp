#include "operations/convert/source/conversion_source.h"

#include <algorithm>
#include <cstdint>
#include <memory>
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
#include "operations/convert/source/map_source.h"
#include "operations/inspect/diff.h"
#include "strategies/contract/forwarding_reader.h"
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

Draft open_source(const Location& source, const ConvertOptions& options) {
  require_rules(
      Call::kConvert,
      {.save = {.io = options.limits.io},
       .load = {.strategy = options.source.strategy,
                .map = options.source.map,
                .threads = options.limits.read_threads.value_or(options.limits.io.threads)}},
      nullptr);
  Draft draft{.reader = nullptr,
              .keys = options.source.keys,
              .adapter = adapter_to_merge(options),
              .memory = options.limits.memory,
              .progress = options.progress};
  if (draft.adapter) draft.memory -= draft.adapter->memory;
  draft.reader = open_checkpoint(
      source, {.iteration = options.source.iteration, .strategy = options.source.strategy});
  return draft;
}

std::string apply_map(Draft& draft, const ConvertOptions& options, ConvertReport& report) {
  const std::shared_ptr<const Storage> files = model_files_of(options);
  const std::shared_ptr<const CheckpointReader> source = std::move(draft.reader);
  const MapRequest request{.open = [&] { return std::make_unique<ForwardingReader>(source); },
                           .map = options.source.map,
                           .keys = options.source.keys,
                           .model_files = files.get(),
                           .to = keys_of_target(options)};
  MappedSource mapped = map_source(request);
  if (options.checks.round_trip)
    draft.progress = check_round_trip(request, mapped, draft.memory, options);
  const bool to_hf = mapped.report.keys.sides.to == KeyNames::kHf;
  draft.usual_format = to_hf ? "hf" : "torch_dist";
  append(draft.findings, left_out(mapped, report));
  append(draft.findings, std::move(mapped.report.findings));
  append(draft.findings, probe_norms(*mapped.reader, mapped.report.norms));
  if (!mapped.report.copies.copies.empty())
    append(draft.findings, compare_copies(*source, mapped.report.copies));
  draft.reader = std::move(mapped.reader);
  draft.keys = std::move(mapped.behind);
  draft.config = std::move(mapped.report.config);
  draft.source_keys = std::move(mapped.source_keys);
  return str_format("gives {} the keys of {} by the map {}",
                    counted(draft.reader->metadata().tensors.size(), "tensor"),
                    to_hf ? "Hugging Face" : "Megatron", quote(mapped.report.map));
}

void require_map_for_models(const CheckpointReader& reader, const ChosenTarget& target,
                            const ConvertOptions& options) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !options.source.map.name.empty())
    return;
  const auto& tensors = reader.metadata().tensors;
  if (std::ranges::none_of(tensors, [](const auto& tensor) {
        return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
      }))
    return;
  auto model = std::unique_ptr<CheckpointReader>(std::make_unique<ForwardingReader>(reader));
  if (reader.info().conventions.megatron_fsdp)  // maps know Megatron-Core's keys
    model = from_megatron_fsdp(std::move(model)).reader;
  std::string fitting;
  for (const std::string& map : fitting_maps(*model, model_files_of(options).get()))
    fitting += (fitting.empty() ? "--map " : " or --map ") + map;
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format("the keys are Megatron's, and transformers finds none of them; {}; --map none "
                 "insists on these keys",
                 fitting.empty() ? "no shipped map fits this model, so write one (docs/maps.md)"
                                 : "it has the keys and shapes of a model for " + fitting));
}

}  // namespace dckpt
