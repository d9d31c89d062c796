// How ranks save together. Between two collectives every rank does local work inside agree(), so
// that no rank leaves alone.
//
//   1. Each rank plans what it holds; the plans, or fingerprints of them, go to rank 0, who asks
//      once more if it needs a plan that it does not know.
//   2. Rank 0 decides who writes what, begins the publication, and tells each rank its items and
//      where to write them.
//   3. Each rank writes its data files and makes them durable; what lies where goes to rank 0, for
//      a manifest with the digests of the files, which are computed on the way to the disk.
//   4. Rank 0 lets the strategy write what readers start from (for torch_dist: the common state,
//      .metadata, metadata.json), adds the manifest, and publishes.
//
// Steps 3 and 4 may take long: meanwhile the ranks give each other signs of life (heartbeat.h). A
// rank that fails in any step fails all of them, and rank 0 removes what was written.

#include "dist_checkpointing/save/save_steps.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "configs/policy.h"
#include "dist_checkpointing/planner/planner_checks.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/resolved_source.h"
#include "dist_checkpointing/registry.h"
#include "dist_checkpointing/same_on_all_ranks.h"
#include "dist_checkpointing/save/common_comparison.h"
#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/metered_source.h"
#include "dist_checkpointing/save/plain_comparison.h"
#include "dist_checkpointing/save/report_file.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/planning/chunk_geometry.h"
#include "mapping/planning/save/plan_agreement.h"
#include "mapping/planning/save/plan_file.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::uint64_t bytes_of(const SavePlan& items) {
  std::uint64_t bytes = 0;
  for (const WriteItem& item : items) bytes += item.nbytes;
  return bytes;
}

/// Options decide what the ranks exchange: with different ones they would wait for each other.
void require_same_call(const SaveCall& call) {
  if (call.comm.size() == 1) return;
  const std::array<SharedArgument, 2> arguments{{
      {"directories", call.target.absolute()},
      {"options", to_yaml(Policy{.save = call.options}) +
                      (call.options.overwrite ? "overwrite: true" : "overwrite: false")},
  }};
  require_same(call.comm, "save", arguments);
}

PlannerOptions planner_options(const SaveOptions& options) {
  PlannerOptions planner = options.planner;
  planner.kind = planner_kind(options);
  return planner;
}

StateDict prepared(StateDict state, const SaveHooks& hooks) {
  if (hooks.preprocess) state = hooks.preprocess(std::move(state));
  if (state.is_none()) state = Value::dict();  // what StateDict() is
  if (hooks.content_metadata) state[kContentMetadataKey] = *hooks.content_metadata;
  return state;
}

/// What the strategy would have to leave out.
void check_contents(const DescribedState& described, const SaveStrategyEntry& strategy) {
  if (strategy.conventions.megatron_fsdp)
    throw CheckpointError(ErrorCode::kUnsupported,
                          str_format("strategy {} is for conversions, which make the keys of "
                                     "Megatron-FSDP; save as 'torch_dist' and convert, or as 'dcp' "
                                     "if the state has these keys",
                                     quote(strategy.name)));
  const auto refuse = [&](const std::string& what, const std::string& key) {
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format(
            "strategy {} does not store {}; save with another one, or leave them out of the state",
            quote(strategy.name), what),
        {.key = key});
  };
  if (strategy.arrange)
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("strategy {} is for conversions only; save with torch_dist, then convert the "
                   "checkpoint (dckpt convert --to {})",
                   quote(strategy.name), strategy.name));
  if (!strategy.capabilities.objects) {
    for (const LocalShard& shard : described.shards) {
      if (const auto* const object = std::get_if<ObjectShard>(&shard))
        refuse("objects", object->key);
    }
  }
  if (!strategy.capabilities.common_state && described.common &&
      !described.common->as_dict().empty()) {
    const Value& first = described.common->as_dict().begin()->first;
    refuse("values that are not sharded", first.is_str() ? first.as_str() : "");
  }
}

/// What the strategy would have to put together, or cut anew.
void require_chunks(const Metadata& metadata, const SaveStrategyEntry& strategy) {
  if (strategy.capabilities.equal_chunks) {
    for (const TensorStorageMetadata& tensor : metadata.tensors) {
      if (tensor.chunks.empty() || numel(tensor.size) == 0 || regular_chunk(tensor)) continue;
      throw CheckpointError(
          ErrorCode::kUnsupported,
          str_format("the tensor is cut into parts of different sizes, but strategy {} stores "
                     "those of one size; save with torch_dist, then convert the checkpoint (dckpt "
                     "convert --to {})",
                     quote(strategy.name), strategy.name),
          {.key = tensor.key});
    }
  }
  if (strategy.capabilities.cut_tensors) return;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (tensor.chunks.size() == 1) continue;
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("the tensor is cut into {} parts, but strategy {} stores each tensor whole; "
                   "save with torch_dist, then convert the checkpoint (dckpt convert --to {})",
                   grouped(tensor.chunks.size()), quote(strategy.name), strategy.name),
        {.key = tensor.key});
  }
}

/// What a planner of the registry is told about itself.
template <typename Step>
auto of_planner(const SaveOptions& options, Step&& step) {
  const std::string& name = options.registered_planner.name;
  try {
    return step();
  } catch (...) {
    if (name.empty()) throw;
    const CheckpointError error = current_error();
    throw CheckpointError(error.code(), str_format("planner {}: {}", quote(name), error.message()),
                          error.context(), error.cause());
  }
}

/// Rank 0 decides as the planner does, whose own plan is checked. The built-in planners are not
/// asked, as their rules are those of PlanAgreement.
PlanAgreement::Decision decision_of(SavePlanner& planner, const SaveOptions& options) {
  const StrategySpec& registered = options.registered_planner;
  if (registered.name.empty()) return {};
  std::optional<std::string> key = of_planner(options, [&] { return planner.cache_key(); });
  if (key) key = registered.name + "\n" + to_yaml_text(registered.options) + "\n" + *key;
  return {[&planner, &options](const LocalPlans& plans) {
            return of_planner(options, [&] {
              GlobalPlan plan = planner.create_global_plan(plans);
              if (overridden_steps(options).global_plan)
                validate_global_plan(plan, plans, global_plan_options(options).redundant());
              return plan;
            });
          },
          std::move(key)};
}

/// That a planner leaves out is its decision, but readers of this form need the common state.
void require_common_state(std::span<const LocalShard> shards, const SavePlan& items) {
  const bool has_one = std::ranges::any_of(shards, [](const LocalShard& shard) {
    const auto* const object = std::get_if<ObjectShard>(&shard);
    return object != nullptr && object->key == kCommonStateKey;
  });
  if (has_one && std::ranges::none_of(
                     items, [](const WriteItem& item) { return item.key == kCommonStateKey; }))
    throw CheckpointError(ErrorCode::kMismatch,
                          "the planner's local plan lacks the object of the common state, without "
                          "which no reader opens the checkpoint; keep its item",
                          {.key = kCommonStateKey});
}

/// Readers decode objects before load planners see them.
void require_readable(const WriteItem& item, ByteView bytes) {
  if (failure_of([&] { load_torch_bytes(bytes, item.key); }))
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("resolve_object() returned {} that are not a torch.save file, "
                                     "as every reader expects one; change the value in it",
                                     counted(bytes.size(), "byte")),
                          {.key = item.key});
}

/// The final items, and what they are made of where the planner changes it.
void finish_items(const SaveOptions& options, SavePlanner& planner, DescribedState& described,
                  PlannedSave& mine) {
  if (options.registered_planner.name.empty()) return;
  if (overridden_steps(options).finish_plan) {
    SavePlan finished = planner.finish_plan(mine.items);
    check_finished_plan(mine.items, finished, {described.tensors, described.object_bytes}, planner);
    mine.items = std::move(finished);
  }
  bool resolves = false;
  for (WriteItem& item : mine.items) {
    if (item.key == kCommonStateKey || !planner.resolves(item)) continue;
    if (item.kind == WriteItem::Kind::kTensor) {
      resolves = true;
      continue;
    }
    Bytes bytes = planner.resolve_object(item, described.object_bytes[item.source]);
    require_readable(item, bytes);
    item.nbytes = bytes.size();
    item.source = static_cast<std::uint32_t>(described.object_bytes.size());
    described.object_bytes.push_back(std::move(bytes));
  }
  if (!resolves) return;
  for (const Tensor& tensor : described.tensors) mine.dtypes.push_back(tensor.dtype());
  for (const WriteItem& item : mine.items) {
    mine.unresolved.push_back(item.kind == WriteItem::Kind::kTensor
                                  ? item_in_state(item, mine.dtypes[item.source])
                                  : item);
  }
}

void compare_plain(const SaveCall& call, DescribedState& described) {
  if (planner_kind(call.options) != PlannerKind::kMegatron) {
    compare_plain_leaves(described, call.comm);
    described.plain.clear();
    return;
  }
  Value common = std::move(described.own_common);
  agree(call.comm, "preparing the common state for comparison", [&] {
    if (call.hooks.before_comparison) common = call.hooks.before_comparison(std::move(common));
  });
  compare_common_states(common, call.comm);
}

/// Step 4 on rank 0.
SaveReport publish(SaveCall& call, const PlannedSave& planned, PlannedCheckpoint checkpoint,
                   const std::vector<Bytes>& results) {
  std::optional<PhaseClock::Scope> publishing(std::in_place, &call.phases, Phase::kPublish);
  const auto begin = std::chrono::steady_clock::now();
  call.heartbeat.check();
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  std::vector<RankSaveReport> reports;
  std::vector<KeyPaths> paths;
  ManifestDigests digests;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    WrittenByRank written = with_context({.rank = static_cast<int>(rank)},
                                         [&] { return decode_written(results[rank]); });
    reports.push_back(std::move(written.report));
    places.push_back(std::move(written.items.places));
    files.push_back(std::move(written.items.files));
    paths.push_back(std::move(written.paths));
    digests.merge(written.digests);
  }
  Metadata metadata = written_metadata(*checkpoint.global->plan, places, files);
  metadata.paths = std::move(checkpoint.paths);
  add_paths(metadata, paths);
  if (!metadata.paths.empty()) sort_paths(metadata, checkpoint.global->plan->path_order);
  if (call.options.planner.keep_plans == KeepPlans::kMetadata)
    metadata.cached_plans = cached_plans(*checkpoint.global);
  metadata.storage_meta = StorageMeta{call.target.absolute(), std::move(checkpoint.save_id)};
  std::optional<CommonState> common;
  if (checkpoint.common) common.emplace(*std::move(checkpoint.common));
  SaveReport report = sum_of(reports);
  report.plan_cached = checkpoint.plan_cached;
  const auto complete = [&](const WrittenFiles& here, const PhaseClock::Taken& published) {
    SaveReport all = report;
    all.bytes += here.bytes;
    all.files += here.count;
    all.publish = over_ranks(std::array{published});
    all.seconds = seconds_since(call.begin);
    return all;
  };
  SideFiles side_files;
  if (call.options.planner.keep_plans == KeepPlans::kFile)
    side_files.plans = encode_plan_file(*checkpoint.global);
  if (call.options.report) {
    side_files.report = [&](const WrittenFiles& here) {
      return to_json(complete(here, {seconds_since(begin), here.bytes}));
    };
  }
  const WrittenFiles written = publish_checkpoint(
      std::move(checkpoint.publication), planned.target, *planned.strategy, metadata,
      common ? &*common : nullptr, digests, call.options.io.fsync, [&] { call.heartbeat.check(); },
      side_files);
  publishing.reset();
  return complete(written, call.phases.end(Phase::kPublish, written.bytes));
}

}  // namespace

SaveCall::SaveCall(const Location& location, SaveOptions given, Communicator& ranks,
                   const SaveHooks& trainers)
    : target(location),
      options(canonical(with_planner_rules(std::move(given)))),
      comm(ranks),
      hooks(trainers),
      heartbeat(
          ranks,
          {.timeout = options.timeout, .cancel = trainers.cancel, .progress = trainers.progress}),
      phases("save", target.display(), ranks.rank()) {}

AgreedSave plan_save(SaveCall& call, const StateDict& state, SavePlanCache& cache) {
  const PhaseLabel label("planning the save");
  std::optional<PhaseClock::Scope> planning(std::in_place, &call.phases, Phase::kPlan);
  const SaveOptions& options = call.options;
  const PlanAgreement agreement(cache, planner_options(options), options.parallel.enabled);
  Communicator& comm = call.comm;
  AgreedSave agreed;
  DescribedState described;
  LocalPlan local;
  DecidedPlan decided;
  std::unique_ptr<SavePlanner> planner;
  require_same_call(call);
  agree(comm, "describing the state dict", [&] {
    require_target_name(call.target);
    agreed.mine.strategy = make_save_strategy(options);
    planner = make_save_planner(options);
    const StateDict to_save = prepared(state, call.hooks);
    described = describe_state(to_save, options, comm.rank());
    check_contents(described, find_save_strategy(options.strategy.name, options.strategy.version));
    local = agreement.create_local_plan(of_planner(options, [&] {
      planner->set_up_planner({to_save, described.shards, options, comm.rank(), comm.size()});
      SavePlan items = planner->create_local_plan();
      if (overridden_steps(options).local_plan) {
        check_local_plan(items, {described.tensors, described.object_bytes}, *planner);
        require_common_state(described.shards, items);
        described.paths = with_planned_keys(described.paths, items, described.shards);
      }
      return items;
    }));
  });
  if (options.planner.validate) compare_plain(call, described);

  std::string why_planned;  // on rank 0
  bool again = false;
  do {
    const std::vector<Bytes> proposals = comm.gather(local.proposal, 0);
    std::vector<Bytes> assignments;
    decide(comm, [&] {
      decided = agreement.create_global_plan(proposals, decision_of(*planner, options));
      if (why_planned.empty()) why_planned = decided.why_planned;
      RankAssignment assignment;
      if (decided.global) {
        require_chunks(decided.plan().metadata,
                       find_save_strategy(options.strategy.name, options.strategy.version));
        if (call.hooks.accept)
          call.hooks.accept(decided.plan().metadata,
                            described.common ? &*described.common : nullptr);
        agreed.checkpoint.emplace(
            PlannedCheckpoint{.publication = begin_publication(call.target, options),
                              .global = decided.global,
                              .paths = described.paths,
                              .common = std::move(described.common),
                              .save_id = random_id(),
                              .plan_cached = decided.cache_hit});
        assignment.directory = agreed.checkpoint->publication.staging();
        assignment.save_id = agreed.checkpoint->save_id;
      }
      for (Bytes& answer : decided.answers) {
        assignment.answer = std::move(answer);
        assignments.push_back(encode(assignment));
      }
    });
    const Bytes assignment = comm.scatter(assignments, 0);
    agree(comm, "accepting the plan", [&] {
      RankAssignment assigned = decode_assignment(assignment);
      again = agreement.propose_again(local, assigned.answer);
      if (again) return;
      PlannedSave& mine = agreed.mine;
      mine.target = {call.target.storage(), std::move(assigned.directory), options.integrity};
      mine.report.why_planned = local.why_planned.empty() ? why_planned : local.why_planned;
      FinalPlan final = agreement.finish_plan(std::move(local), assigned.answer);
      mine.paths = paths_of(final.items, described.paths);
      mine.items = std::move(final.items);
      of_planner(options, [&] {
        planner->begin_save(assigned.save_id);
        finish_items(options, *planner, described, mine);
      });
      agreed.plans = agreement.to_remember(std::move(final.local), std::move(decided.global));
    });
  } while (again);
  agreed.mine.planner = std::move(planner);
  planning.reset();
  agreed.mine.report.plan = call.phases.end(Phase::kPlan);
  agreed.tensors = std::move(described.tensors);
  agreed.object_bytes = std::move(described.object_bytes);
  return agreed;
}

WrittenByRank write_save(SaveCall& call, const PlannedSave& planned, ItemSource& source) {
  const int rank = call.comm.rank();
  WrittenByRank result{
      .items = {}, .digests = {}, .paths = planned.paths, .report = planned.report};
  call.heartbeat.expect(bytes_of(planned.items_in_state()));
  call.heartbeat.agree("writing the data files", [&] {
    WriteTarget target = planned.target;
    target.phases = &call.phases;
    MeteredSource metered(source, call.heartbeat, call.phases);
    ResolvedSource resolved(metered, *planned.planner, planned.dtypes);
    ItemSource& items_of = planned.dtypes.empty() ? static_cast<ItemSource&>(metered) : resolved;
    auto [items, files] = [&] {
      const PhaseClock::Scope writing(&call.phases, Phase::kWrite);
      return write_items(target, *planned.strategy, rank, planned.items, items_of);
    }();
    RankSaveReport& report = result.report;
    report.bytes = files.bytes;
    report.files = files.count;
    report.copy = call.phases.end(Phase::kCopy, bytes_of(planned.items));
    report.sync = call.phases.end(Phase::kSync);
    report.write = call.phases.end(Phase::kWrite, files.bytes);
    if (files.count > 0)
      report.engine = files.direct == 0             ? "buffered"
                      : files.direct == files.count ? "direct"
                                                    : "direct and buffered";
    result.items = std::move(items);
    result.digests = std::move(files.digests);
  });
  return result;
}

SaveReport publish_save(SaveCall& call, const PlannedSave& planned, const WrittenByRank& mine,
                        std::optional<PlannedCheckpoint> checkpoint) {
  const PhaseLabel label("publishing the checkpoint");
  Communicator& comm = call.comm;
  const std::vector<Bytes> results = comm.gather(encode(mine), 0);
  SaveReport report;
  call.heartbeat.agree("publishing the checkpoint", [&] {
    if (checkpoint) report = publish(call, planned, *std::move(checkpoint), results);
  });
  report = decode_save_report(comm.broadcast(encode(report), 0));
  if (comm.rank() == 0)
    log_notice(str_format("saved {}: {}", quote(call.target.display()), to_string(report)));
  return report;
}

}  // namespace dckpt
