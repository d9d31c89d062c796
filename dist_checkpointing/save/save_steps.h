#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
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
// save_steps.cpp. If a step throws, it throws the same CheckpointError on every rank, and the
// written files are removed with the values that the caller has.

/// The arguments of a save on this rank, and its clock. The referenced objects must outlive it.
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
  Findings findings{};  ///< findings of rank 0
};

/// A planner that is told once how its save has ended, at the latest when it is destroyed. The ones
/// that are built in have no name, and need not know.
class EndedPlanner {
 public:
  EndedPlanner() = default;
  EndedPlanner(std::unique_ptr<SavePlanner> planner, std::string who)
      : planner_(std::move(planner)),
        who_(std::move(who)),
        given_up_(std::make_shared<const CheckpointError>(
            ErrorCode::kCancelled, "the save was given up before its end")) {}
  EndedPlanner(EndedPlanner&&) = default;
  EndedPlanner& operator=(EndedPlanner&& other) noexcept;
  ~EndedPlanner() { end(given_up_.get()); }

  SavePlanner& operator*() const noexcept { return *planner_; }
  SavePlanner* operator->() const noexcept { return planner_.get(); }

  void published() noexcept { end(nullptr); }
  /// Passes on the exception that is being handled.
  void failed() noexcept;

 private:
  void end(const CheckpointError* failure) noexcept;

  std::unique_ptr<SavePlanner> planner_;
  std::string who_;
  std::shared_ptr<const CheckpointError> given_up_;  ///< made while there is memory
};

/// The items that this rank writes, and their destination.
struct PlannedSave {
  std::unique_ptr<const SaveStrategy> strategy;
  WriteTarget target;
  SavePlan items;
  EndedPlanner planner;
  std::vector<DType> dtypes;  ///< dtypes of the state's tensors, if the planner resolves some
  SavePlan unresolved;        ///< `items` as they are in the state, if the planner resolves some
  KeyPaths paths;             ///< paths of the keys of `items`, under DCP's rules
  RankSaveReport report;      ///< report of this rank so far

  /// Returns the items as they are read from the state.
  const SavePlan& items_in_state() const { return dtypes.empty() ? items : unresolved; }
};

/// The checkpoint that rank 0 will publish. If it is not published, the written files are removed.
struct PlannedCheckpoint {
  Publication publication;
  std::shared_ptr<const SavePlanCache::Global> global;
  KeyPaths paths;  ///< paths of all keys of rank 0
  std::optional<Value> common;
  std::string save_id;
  bool plan_cached = false;
};

/// The agreement of the ranks on a save.
struct AgreedSave {
  PlannedSave mine;
  std::vector<Tensor> tensors;  ///< tensors that the items refer to
  std::vector<Bytes> object_bytes;
  SavePlanCache::Content plans;                 ///< committed when the save has succeeded
  std::optional<PlannedCheckpoint> checkpoint;  ///< set on rank 0
};

/// Describes the state and agrees on who writes what. Leaves `cache` empty.
AgreedSave plan_save(SaveCall& call, const StateDict& state, SavePlanCache& cache);

/// Writes the items and makes them durable.
WrittenByRank write_save(SaveCall& call, const PlannedSave& planned, ItemSource& source);

/// Makes the checkpoint visible.
SaveReport publish_save(SaveCall& call, const PlannedSave& planned, const WrittenByRank& mine,
                        std::optional<PlannedCheckpoint> checkpoint);

}  // namespace dckpt
