// Steps 1 and 2 of the protocol in save_steps.cpp.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "configs/policy/policy.h"
#include "configs/yaml/yaml.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/planner_checks.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/resolved_source.h"
#include "dist_checkpointing/ranks/same_on_all_ranks.h"
#include "dist_checkpointing/save/common_comparison.h"
#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/plain_comparison.h"
#include "dist_checkpointing/save/planned_state.h"
#include "dist_checkpointing/save/replica_comparison.h"
#include "dist_checkpointing/save/save_steps.h"
#include "dist_checkpointing/save/write_checkpoint.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/planning/chunk_geometry.h"
#include "mapping/planning/save/plan_agreement.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

/// Requires equal options, since they decide what the ranks exchange: with different ones they
/// would wait for each other.
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

StateDict prepared(StateDict state, const SaveHooks& hooks, int rank) {
  if (hooks.preprocess)
    state = run_foreign("SaveHooks::preprocess", {.rank = rank},
                        [&] { return hooks.preprocess(std::move(state)); });
  if (state.is_none()) state = Value::dict();  // the value of StateDict()
  if (hooks.content_metadata) state[kContentMetadataKey] = *hooks.content_metadata;
  return state;
}

/// Throws for tensors that the strategy would have to join or split.
void require_chunks(const Metadata& metadata, const SaveStrategyEntry& strategy) {
  if (strategy.capabilities.equal_chunks) {
    for (const TensorStorageMetadata& tensor : metadata.tensors) {
      if (tensor.chunks.empty() || numel(tensor.size) == 0 || regular_chunk(tensor)) continue;
      throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                  "the tensor is cut into parts of different sizes, but strategy {} stores "
                  "those of one size; save with torch_dist, then convert the checkpoint (dckpt "
                  "convert --to {})",
                  quote(strategy.name), strategy.name);
    }
  }
  if (strategy.capabilities.cut_tensors) return;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (tensor.chunks.size() == 1) continue;
    throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                "the tensor is cut into {} parts, but strategy {} stores each tensor whole; "
                "save with torch_dist, then convert the checkpoint (dckpt convert --to {})",
                grouped(tensor.chunks.size()), quote(strategy.name), strategy.name);
  }
}

/// Returns how rank 0 decides: with a registered planner, by its global plan, which is checked. The
/// built-in planners are not called, as their rules are those of PlanAgreement.
PlanAgreement::Decision decision_of(SavePlanner& planner, const SaveOptions& options, int rank,
                                    bool compares) {
  const StrategySpec& registered = options.registered_planner;
  if (registered.name.empty()) return {.compare_replicas = compares};
  std::optional<std::string> key = of_planner(options, rank, [&] { return planner.cache_key(); });
  if (key) key = registered.name + "\n" + to_yaml_text(registered.options.tree()) + "\n" + *key;
  return {[&planner, &options, rank](const LocalPlans& plans) {
            return of_planner(options, rank, [&] {
              GlobalPlan plan = planner.create_global_plan(plans);
              if (overridden_steps(options).global_plan)
                validate_global_plan(plan, plans, global_plan_options(options).redundant());
              return plan;
            });
          },
          std::move(key), compares};
}

/// Requires a torch.save file, since readers decode objects before load planners see them.
void require_readable(const WriteItem& item, ByteView bytes) {
  if (failure_of([&] { load_torch_bytes(bytes, item.key); }))
    throw_error(ErrorCode::kMismatch, {.key = item.key},
                "transform_object() returned {} that are not a torch.save file, "
                "as every reader expects one; change the value in it",
                counted(bytes.size(), "byte"));
}

/// Sets the final items, and the data that the planner changes.
void finish_items(const SaveOptions& options, SavePlanner& planner, DescribedState& described,
                  PlannedSave& mine) {
  if (options.registered_planner.name.empty()) return;
  const ItemSources sources = sources_of(described);
  if (overridden_steps(options).finish_plan) {
    SavePlan finished = planner.finish_plan(mine.items);
    check_finished_plan(mine.items, finished, sources, planner);
    mine.items = std::move(finished);
  }
  check_assigned_items(mine.items, sources);
  bool resolves = false;
  for (WriteItem& item : mine.items) {
    const auto resolved = [&](const auto& step) {
      return run_foreign("", {.key = item.key}, step);
    };
    if (item.key == kCommonStateKey || !resolved([&] { return planner.resolves(item); })) continue;
    if (item.kind == WriteItem::Kind::kTensor) {
      resolves = true;
      continue;
    }
    Bytes bytes = resolved(
        [&] { return planner.transform_object(item, described.object_bytes[item.source]); });
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

/// The proposal, decision and acceptance of this rank, between the collectives of plan_save().
class SaveNegotiation {
 public:
  SaveNegotiation(SaveCall& call, SavePlanCache& cache)
      : call_(call),
        options_(call.options),
        agreement_(cache, planner_options(options_), options_.parallel.enabled) {}

  const Bytes& proposal() const { return local_.proposal; }

  void propose(const StateDict& state) {
    require_target_name(call_.target);
    agreed_.mine.strategy = make_save_strategy(options_);
    planner_ = {make_save_planner(options_), planner_text(options_.registered_planner.name)};
    PlannedState planned =
        plan_rank(prepared(state, call_.hooks, call_.comm.rank()), *planner_, call_.target,
                  options_, {call_.comm.rank(), call_.comm.size()});
    described_ = std::move(planned.described);
    local_ = agreement_.create_local_plan(std::move(planned.items));
  }

  /// Compares values that should be the same on all ranks. Collective.
  void compare_plain() {
    Communicator& comm = call_.comm;
    if (planner_kind(options_) != PlannerKind::kMegatron) {
      compare_plain_leaves(described_, options_, comm, call_.findings);
      return;
    }
    Value common = std::move(described_.own_common);
    agree(comm, "preparing the common state for comparison", [&] {
      if (call_.hooks.before_comparison)
        common = run_foreign("SaveHooks::before_comparison", {.rank = comm.rank()},
                             [&] { return call_.hooks.before_comparison(std::move(common)); });
    });
    compare_common_states(common, comm, call_.findings);
  }

  /// Called on rank 0: returns the assignment of each rank.
  std::vector<Bytes> decide(const std::vector<Bytes>& proposals) {
    decided_ = agreement_.create_global_plan(
        proposals, decision_of(*planner_, options_, call_.comm.rank(), compares_replicas()));
    begin_checkpoint();
    RankAssignment assignment;
    assignment.directory = agreed_.checkpoint->publication.staging();
    assignment.save_id = agreed_.checkpoint->save_id;
    std::vector<Bytes> assignments;
    for (std::size_t rank = 0; rank < decided_.answers.size(); ++rank) {
      assignment.answer = std::move(decided_.answers[rank]);
      if (compares_replicas()) assignment.compared = decided_.global->replicas->items[rank];
      assignments.push_back(encode(assignment));
    }
    return assignments;
  }

  void accept(ByteView assignment) {
    RankAssignment assigned = decode_assignment(assignment, local_.items.size());
    hashes_ = hash_replicas(described_, local_.items, assigned.compared, options_.check_replicas,
                            options_.io.threads);
    PlannedSave& mine = agreed_.mine;
    mine.target = {call_.target.storage(), std::move(assigned.directory), options_.integrity};
    mine.report.why_planned =
        local_.why_planned.empty() ? decided_.why_planned : local_.why_planned;
    FinalPlan final = agreement_.finish_plan(std::move(local_), assigned.answer);
    mine.paths = paths_of(final.items, described_.paths);
    mine.items = std::move(final.items);
    of_planner(options_, call_.comm.rank(), [&] {
      planner_->begin_save(assigned.save_id);
      finish_items(options_, *planner_, described_, mine);
    });
    agreed_.plans = agreement_.to_remember(std::move(final.local), decided_.global);
  }

  /// The message with which accept() is agreed upon.
  const Bytes& hashes() const { return hashes_; }
  /// Called on rank 0 with those of all ranks, after accept().
  void compare_replicas(const std::vector<Bytes>& hashes) {
    if (compares_replicas())
      tell_differing_replicas(*decided_.global->replicas, hashes, call_.findings);
  }

  /// Tells the planner of the exception that is being handled.
  void fail() noexcept { planner_.failed(); }

  AgreedSave agreed() && {
    agreed_.mine.planner = std::move(planner_);
    agreed_.tensors = std::move(described_.tensors);
    agreed_.object_bytes = std::move(described_.object_bytes);
    return std::move(agreed_);
  }

 private:
  const SaveStrategyEntry& save_strategy() const {
    return find_save_strategy(options_.strategy.name, options_.strategy.version);
  }

  bool compares_replicas() const {
    return call_.comm.size() > 1 && options_.check_replicas != CheckReplicas::kOff;
  }

  void begin_checkpoint() {
    const Metadata& metadata = decided_.plan().metadata;
    require_chunks(metadata, save_strategy());
    if (call_.hooks.accept)
      run_foreign("SaveHooks::accept", {.rank = call_.comm.rank()}, [&] {
        call_.hooks.accept(metadata, described_.common ? &*described_.common : nullptr);
      });
    agreed_.checkpoint.emplace(PlannedCheckpoint{
        .publication = begin_publication(call_.target, options_, call_.hooks.may_replace),
        .global = decided_.global,
        .paths = described_.paths,
        .common = std::move(described_.common),
        .save_id = random_id(),
        .plan_cached = decided_.cache_hit});
  }

  SaveCall& call_;
  const SaveOptions& options_;
  const PlanAgreement agreement_;
  EndedPlanner planner_;
  DescribedState described_;
  LocalPlan local_;
  DecidedPlan decided_;  ///< set on rank 0
  Bytes hashes_;
  AgreedSave agreed_;
};

/// Agrees on the save with the other ranks.
void negotiate(SaveCall& call, const StateDict& state, SaveNegotiation& negotiation) {
  Communicator& comm = call.comm;
  require_same_call(call);
  agree(comm, "describing the state dict", [&] { negotiation.propose(state); });
  if (call.options.planner.validate) negotiation.compare_plain();
  const auto refuse_findings = [&] {
    if (call.options.error_on.empty()) return;  // the same on all ranks
    decide(comm, [&] {
      refuse(call.findings, call.options.error_on,
             "findings of these kinds are to be errors (save.error_on), so nothing was written:");
    });
  };
  refuse_findings();
  const std::vector<Bytes> proposals = comm.gather(negotiation.proposal(), 0);
  std::vector<Bytes> assignments;
  decide(comm, [&] { assignments = negotiation.decide(proposals); });
  const Bytes assignment = comm.scatter(assignments, 0);
  const auto failure = failure_of([&] { negotiation.accept(assignment); });
  agree(comm, "accepting the plan", failure, negotiation.hashes(),
        [&](const std::vector<Bytes>& hashes) {
          negotiation.compare_replicas(hashes);
          return Bytes();
        });
  refuse_findings();
}

}  // namespace

AgreedSave plan_save(SaveCall& call, const StateDict& state, SavePlanCache& cache) {
  const PhaseLabel label("planning the save");
  std::optional<PhaseClock::Scope> planning(std::in_place, &call.phases, Phase::kPlan);
  SaveNegotiation negotiation(call, cache);
  try {
    negotiate(call, state, negotiation);
  } catch (...) {
    negotiation.fail();
    throw;
  }
  AgreedSave agreed = std::move(negotiation).agreed();
  planning.reset();
  agreed.mine.report.plan = call.phases.end(Phase::kPlan);
  return agreed;
}

}  // namespace dckpt
