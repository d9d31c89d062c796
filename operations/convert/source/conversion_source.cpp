#include "operations/convert/source/conversion_source.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "configs/policy/option_rules.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "migration/maps/mapped_reader.h"
#include "operations/convert/source/adapter_to_merge.h"
#include "operations/convert/source/map_source.h"
#include "operations/inspect/diff.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/registry/registry.h"
#include "strategies/safetensors/hub_cache.h"

namespace dckpt {
namespace {

/// Sets whose keys readers of the requested format look for; nothing if it is not named.
void set_target(MapRequest& request, const std::string& strategy) {
  for (const SaveStrategyEntry& format : save_strategies()) {
    if (format.name != strategy) continue;
    request.to_model_folder = format.conventions.model_folder;
    if (format.conventions.model_folder)
      request.to = KeyNames::kHf;
    else if (format.conventions.megatron_keys)
      request.to = KeyNames::kMegatron;
  }
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

/// Returns the files of a checkpoint of rank folders that Megatron writes beside its folder.
std::vector<std::string> files_beside(const Location& checkpoint) {
  std::vector<std::string> files;
  if (checkpoint.name().empty()) return files;
  for (const FileInfo& entry : checkpoint.storage()->list("")) {
    if (glob_match("layer_wise_optimizer_*.pt", entry.name)) files.push_back("../" + entry.name);
  }
  return files;
}

/// Returns the progress of what follows when `bytes` are done.
Progress continued(const Progress& progress, std::uint64_t bytes) {
  if (!progress) return {};
  return [bytes, progress](std::uint64_t done, std::uint64_t total) {
    progress(bytes + done, bytes + total);
  };
}

}  // namespace

Draft open_source(const Route& route, const ConversionRequest& request, ConvertReport& report) {
  const ConvertSource& source = request.source;
  require_rules(
      Call::kConvert,
      {.save = {.io = request.limits.io},
       .load = {.strategy = source.strategy, .map = source.map, .threads = request.readers}},
      nullptr);
  std::optional<AdapterToMerge> adapter;
  if (source.merge_adapter) adapter = adapter_to_merge(*source.merge_adapter, request);
  const std::uint64_t memory = request.limits.memory - (adapter ? adapter->memory : 0);
  Draft draft{.route = route,
              .reader = open_checkpoint(route.from, {.iteration = source.iteration,
                                                     .strategy = source.strategy,
                                                     .planner = source.planner}),
              .keys = source.keys,
              .adapter = std::move(adapter),
              .beside = files_beside(route.from),
              .memory = memory,
              .progress = request.progress};
  const CheckpointInfo& info = draft.reader->info();
  if (!info.findings.empty())
    add_step(report, "source", str_format("reads {}", quote(info.format)), info.findings);
  return draft;
}

std::shared_ptr<const Storage> model_files(const std::optional<Location>& folder) {
  if (!folder) return nullptr;
  if (!folder->is_directory())
    throw_error(ErrorCode::kIo, {.file = folder->display()},
                "there is no such folder of a model's files");
  return with_hub_cache(folder->directory());
}

std::string apply_map(Draft& draft, const ConversionRequest& request, ConvertReport& report) {
  const std::shared_ptr<const CheckpointReader> source = std::move(draft.reader);
  MapRequest map{.open = [source] { return std::make_unique<ForwardingReader>(source); },
                 .map = request.source.map,
                 .keys = request.source.keys,
                 .model_files = model_files(request.target.model_files)};
  set_target(map, request.target.strategy);
  const auto mapped = std::make_shared<MappedSource>(map_source(map));
  const bool to_hf = mapped->report.keys.sides.to == KeyNames::kHf;
  draft.usual_format = to_hf ? "hf" : "torch_dist";
  draft.trainer = to_hf ? std::string() : mapped->report.trainer;
  append(draft.findings, left_out(*mapped, report));
  append(draft.findings, std::move(mapped->report.findings));
  append(draft.findings, probe_norms(*mapped->reader, mapped->report.norms));
  if (!mapped->report.copies.copies.empty())
    append(draft.findings, compare_copies(*source, mapped->report.copies));
  draft.reader = std::move(mapped->reader);
  draft.keys = std::move(mapped->behind);
  draft.config = std::move(mapped->report.config);
  draft.source_keys = std::move(mapped->source_keys);
  if (request.checks.round_trip) draft.back = [map, mapped] { return round_trip_of(map, *mapped); };
  return str_format("gives {} the keys of {} by the map {}",
                    counted(draft.reader->metadata().tensors.size(), "tensor"),
                    to_hf ? std::string("Hugging Face") : mapped->report.left_name(),
                    quote(mapped->report.map));
}

std::string map_back(Draft& draft, const ConversionRequest&, ConvertReport&) {
  draft.trip = std::exchange(draft.back, nullptr)();
  return str_format("gives {} the keys of the source again, in memory",
                    counted(draft.trip.after->metadata().tensors.size(), "tensor"));
}

std::string compare_round_trip(Draft& draft, const ConversionRequest& request, ConvertReport&) {
  const RoundTrip trip = std::exchange(draft.trip, {});
  std::uint64_t bytes = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    request.go_on();
    bytes = done;
    if (request.progress) request.progress(done, request.dry_run ? total : 2 * total);
  };
  const DiffReport found = diff(
      *trip.before, *trip.after,
      {.common = false, .threads = request.readers, .memory = draft.memory, .progress = progress});
  ProblemList problems;
  for (const Difference& difference : found.differences)
    problems.add(str_format("{}: {}{}", quote(difference.key), to_string(difference.kind),
                            difference.a.empty() || difference.b.empty()
                                ? std::string()
                                : str_format(" {} became {}", difference.a, difference.b)));
  problems.raise_if_any(ErrorCode::kMismatch,
                        "through the map and back, these are not what they were:");
  draft.progress = continued(request.progress, bytes);
  return str_format("compares {} with the source: no bit differs",
                    counted(trip.before->metadata().tensors.size(), "tensor"));
}

}  // namespace dckpt
