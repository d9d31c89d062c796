#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/planner/save_planner.h"
#include "dist_checkpointing/save/describe_state.h"
#include "dist_checkpointing/save/rank_save_report.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_messages.h"
#include "mapping/base/finding.h"
#include "mapping/planning/save/plan_cache_content.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publication.h"

namespace dckpt {

// A save, as every rank runs it: plan_save() → write_save() → publish_save(), the last two perhaps
// in another thread. Each step is collective, and hands on values; the protocol is at the top of
// save_steps.cpp. If a step throws, it throws the same CheckpointError on every rank, and what was
// written goes with the values that the caller has.

/// What a save was called with on this rank, and its clock. What it refers to must outlive it.
struct SaveCall {
  SaveCall(const Location& location, SaveOptions options, Communicator& comm,
           const SaveHooks& hooks);

  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  const Location target;
  const SaveOptions options;  ///< canonical
  Communicator& comm;
  const SaveHooks& hooks;
  Heartbeat heartbeat;
  PhaseClock phases;
  Findings findings{};  ///< of rank 0
};

/// What this rank writes, and where.
struct PlannedSave {
  std::unique_ptr<const SaveStrategy> strategy;
  WriteTarget target;
  SavePlan items;
  std::unique_ptr<const SavePlanner> planner;
  std::vector<DType> dtypes;  ///< of the state's tensors, where the planner resolves some
  SavePlan unresolved;        ///< `items` as they lie in the state, where it does
  KeyPaths paths;             ///< of the keys of `items`, under DCP's rules
  RankSaveReport report;      ///< of this rank, so far

  /// What is read from the state.
  const SavePlan& items_in_state() const { return dtypes.empty() ? items : unresolved; }
};

/// What rank 0 will publish. Unless that is done, what was written is removed.
struct PlannedCheckpoint {
  Publication publication;
  std::shared_ptr<const SavePlanCache::Global> global;
  KeyPaths paths;  ///< of all keys of rank 0
  std::optional<Value> common;
  std::string save_id;
  bool plan_cached = false;
};

/// What the ranks have agreed on.
struct AgreedSave {
  PlannedSave mine;
  std::vector<Tensor> tensors;  ///< that the items refer to
  std::vector<Bytes> object_bytes;
  SavePlanCache::Content plans;                 ///< to be committed when the save has succeeded
  std::optional<PlannedCheckpoint> checkpoint;  ///< on rank 0
};

/// Describes the state and agrees on who writes what. Leaves `cache` empty.
AgreedSave plan_save(SaveCall& call, const StateDict& state, SavePlanCache& cache);

/// Writes the items and makes them durable.
WrittenByRank write_save(SaveCall& call, const PlannedSave& planned, ItemSource& source);

/// Makes the checkpoint visible.
SaveReport publish_save(SaveCall& call, const PlannedSave& planned, const WrittenByRank& mine,
                        std::optional<PlannedCheckpoint> checkpoint);

}  // namespace dckpt
