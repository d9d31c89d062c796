// The protocol of a load. Between two collectives every rank does local work inside agree(), so
// that no rank leaves alone.
//
//   1. One rank reads the metadata and the common state, and all ranks open the checkpoint with
//      this data (open_together). They share the comparison of its files, and compare their
//      arguments.
//   2. Each rank states its request. The ranks compare the keys if the strict mode needs them and,
//      unless access validation is off, their shards. Rank 0 learns what no rank requests of a
//      checkpoint that a state is filled from. All problems with names, shapes and files are agreed
//      upon before the first tensor byte moves.
//   3. Each rank reads its request, or, with load.parallel, the ranks share the reading and
//      exchange the data.
//   4. Each rank assembles its result, and the ranks exchange their phase times.

#include "dist_checkpointing/load/load_steps.h"

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/policy.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/open/open_together.h"
#include "dist_checkpointing/open/planned_view.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/comm/agree.h"
#include "strategies/registry/map_support.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {
namespace {

std::unique_ptr<CheckpointReader> open_with_map(const Location& location,
                                                const LoadOptions& options, std::string& map_text) {
  auto reader = open_checkpoint(location, {.strategy = options.strategy});
  return with_context({.file = location.display()}, [&] {
    return with_map(std::move(reader), options.map, MapUse::kLoad, map_text);
  });
}

/// Reports an adapter beside a model, whose weights are loaded without it.
void tell_of_adapter(const CheckpointReader& model, Findings& findings) {
  const std::vector<std::string>& files = model.info().adapter_files;
  if (files.empty()) return;
  warn(findings, {.code = FindingCode::kAdapterLeftOut,
                  .message = str_format("the adapter beside the model is not part of what is "
                                        "loaded: {}; 'dckpt convert --merge-adapter' merges it",
                                        quoted_list(files)),
                  .keys = files,
                  .severity = Severity::kWarning});
}

/// Returns the manifest that files are compared with before anything is loaded.
IntegrityManifest manifest_for_load(const CheckpointReader& reader, const LoadOptions& options,
                                    Findings& findings) {
  if (options.verify == Verify::kSha256) return require_manifest(reader);
  // The remaining part of a truncated file is loaded, if possible.
  return options.allow_partial_load ? IntegrityManifest{} : sizes_to_compare(reader, findings);
}

/// Compares this rank's share of the files.
void compare_files(const CheckpointReader& reader, const IntegrityManifest& manifest,
                   const LoadOptions& options, const Communicator& comm) {
  if (options.verify == Verify::kSha256)
    compare_digests(reader.storage(), manifest, comm.rank(), comm.size(), options.threads);
  else
    compare_sizes(reader.storage(), manifest, comm.rank(), comm.size());
}

/// Returns the planner that the options name, if any.
std::unique_ptr<PlannedLoad> planned_load(const LoadCall& call) {
  auto planner = make_load_planner(call.options);
  if (!planner) return nullptr;
  return std::make_unique<PlannedLoad>(std::move(planner), call.location, call.options);
}

std::vector<std::string> keys_of(const LostData& lost, const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const LostData::Tensor& tensor : lost.tensors)
    keys.push_back(metadata.tensors[tensor.number].key);
  for (const std::uint32_t object : lost.objects) keys.push_back(metadata.objects[object].key);
  return keys;
}

/// Returns the loss that a partial load accepts because data files are missing.
LostData excused_loss(const CheckpointReader& reader, LoadCall& call) {
  if (!call.options.allow_partial_load) return {};
  LostData lost = find_lost_data(reader, reader.metadata());
  if (!lost.empty() && call.comm.rank() == 0)
    warn(call.report.findings,
         {FindingCode::kDataLost,
          str_format("{}; {} not loaded", lost.where(),
                     counted(lost.tensors.size() + lost.objects.size(), "key is", "keys are")),
          keys_of(lost, reader.metadata()),
          lost.files.size() == 1 ? std::optional(lost.files.front()) : std::nullopt});
  return lost;
}

/// Identifies the save that made the checkpoint: the same for copies on several disks, another one
/// if the latest checkpoint has changed while the ranks looked for it.
std::string origin_of(const Metadata& metadata) {
  const StorageMeta made = metadata.storage_meta.value_or(StorageMeta{});
  return str_format("saved as {}, id {}, tensors {}, objects {}",
                    made.checkpoint_id.value_or("unknown"), made.save_id.value_or("unknown"),
                    grouped(metadata.tensors.size()), grouped(metadata.objects.size()));
}

/// Requires equal options, since they decide what the ranks exchange: with different ones they
/// would wait for each other.
void require_same_call(const LoadCall& call, const Metadata& metadata) {
  if (call.comm.size() == 1) return;
  const std::array<SharedArgument, 2> arguments{
      {{"options", to_yaml(Policy{.load = call.options})}, {"checkpoints", origin_of(metadata)}}};
  require_same(call.comm, "load", arguments);
}

}  // namespace

void LoadWatch::check() const {
  heartbeat.check();
  if (hooks_.cancel.stop_requested()) throw_error(ErrorCode::kCancelled, "the load was cancelled");
  if (timeout_ > timeout_.zero() && std::chrono::steady_clock::now() - begin_ > timeout_)
    throw_error(ErrorCode::kUnavailable, "the load has taken longer than {} ms (load.timeout)",
                timeout_.count());
}

void LoadWatch::arrived(std::uint64_t bytes, std::uint64_t total) {
  check();
  if (hooks_.progress)
    run_foreign("LoadHooks::progress", {}, [&] { hooks_.progress(bytes, total); });
}

void LoadWatch::ready(const std::string& key, const Tensor& tensor) {
  const std::lock_guard lock(telling_);
  run_foreign("LoadHooks::tensor_ready", {.key = key}, [&] { hooks_.tensor_ready(key, tensor); });
}

LoadCall::LoadCall(const Location& where, const LoadOptions& how, Communicator& ranks,
                   LoadHooks trainers, LoadPlanCache* cache)
    : location(where),
      options(how),
      comm(ranks),
      hooks(std::move(trainers)),
      plan_cache(cache),
      watch(comm, options, hooks),
      phases("load", location.display(), comm.rank(), hooks.phases) {}

OpenedCheckpoint open_for(Call entry, LoadCall& call) {
  const LoadOptions& options = call.options;
  call.opening.emplace(&call.phases, Phase::kOpen);
  OpenedCheckpoint opened{.options = options};
  std::unique_ptr<CheckpointReader> reader;
  IntegrityManifest manifest;
  std::optional<CheckpointError> unreadable;  // error of the common state; digests may explain it
  open_together(call.location, call.comm, [&](const Location& shared, std::string& map) {
    if (entry != Call::kLoad) require_rules(entry, {.load = options}, nullptr);
    require_rules(Call::kLoad, {.load = options}, nullptr);
    reader = open_with_map(shared, options, map);
    manifest = manifest_for_load(*reader, options, call.report.findings);
    if (entry == Call::kLoad)
      unreadable = failure_of([&] { opened.common = reader->common_state(); });
  });
  call.watch.heartbeat.agree("opening the checkpoint", [&] {
    call.watch.check();
    compare_files(*reader, manifest, options, call.comm);
    if (call.comm.rank() == 0) tell_of_adapter(*reader, call.report.findings);
    if (unreadable) throw *unreadable;
    if (options.registered_planner.name.empty()) require_planner(*reader);
    if (entry == Call::kLoad)
      opened.planned = planned_load(call);
    else
      reader = with_planner(std::move(reader), options.registered_planner, call.location);
    if (opened.planned) reader = opened.planned->over(std::move(reader));
    opened.keys = StoredKeys(reader->metadata(), options.rename, excused_loss(*reader, call));
    opened.reader = std::make_unique<RequestedShapes>(std::move(reader));
    if (entry != Call::kLoad) return;
    const Backend format{.name = opened.reader->info().format,
                         .conventions = {.keys_are_paths = opened.is_plain_dcp()}};
    require_rules(Call::kLoad, {.load = options}, &format);
  });
  require_same_call(call, opened.metadata());
  return opened;
}

}  // namespace dckpt
