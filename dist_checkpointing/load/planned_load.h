#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A load by a planner of the registry: what it makes of the tensors that a state asks for, and
/// what becomes of them afterwards. An error names the planner.
class PlannedLoad {
 public:
  /// `plans_globally`: whether the planner decides on rank 0 for all ranks.
  PlannedLoad(std::unique_ptr<LoadPlanner> planner, std::string name, bool plans_globally)
      : planner_(std::move(planner)), name_(std::move(name)), plans_globally_(plans_globally) {}

  /// Returns the state that is loaded in place of `state`, which stays as it is.
  StateDict prepared(const StateDict& state, const Metadata& metadata, const LoadOptions& options,
                     const Communicator& comm) const;

  /// Objects as the planner loads them. It must outlive the reader.
  std::unique_ptr<CheckpointReader> over(std::unique_ptr<CheckpointReader> reader) const;

  /// Returns the request in place of each wanted tensor; none for one that is left out. The call
  /// is collective.
  std::vector<std::optional<ShardedTensor>> plan(const std::vector<ShardedTensor>& wanted,
                                                 const Metadata& metadata,
                                                 const LoadOptions& options, Communicator& comm);

  /// Whether what is stored under the key was asked for, but for tensors of other names only.
  bool only_for_others(const std::string& key) const {
    return for_others_.contains(key) && !for_itself_.contains(key);
  }

  /// The tensor of the state in place of what was asked for, with data if it was loaded.
  ShardedTensor restored(std::size_t target, const ShardedTensor& loaded) const;

  /// Whether a destination is the planner's; it is read by this rank alone, and committed once.
  bool resolves(const Tensor& destination) const { return resolved_.contains(destination.data()); }
  /// Called when everything has arrived there, in any thread. Returns what has been filled.
  Tensor commit(const Tensor& destination);

 private:
  struct Resolved {
    LoadItem item;
    Tensor read;         ///< what it is read into, until it has been committed
    Tensor destination;  ///< of the state
    bool committed = false;
  };

  template <typename Step>
  auto of_planner(Step&& step) const;
  LoadPlan local_plan(const Metadata& metadata, const LoadOptions& options,
                      const Communicator& comm);
  LoadPlan global_plan(LoadPlan plan, Communicator& comm) const;
  void check(const LoadPlan& plan) const;
  ShardedTensor asked_for(const LoadItem& item);
  void require_own_memory() const;

  const std::unique_ptr<LoadPlanner> planner_;
  const std::string name_;
  const bool plans_globally_;
  std::vector<ShardedTensor> wanted_;
  std::map<const std::byte*, Resolved> resolved_;
  std::map<std::size_t, const std::byte*> of_target_;
  std::unordered_set<std::string> for_others_;  ///< keys that are read
  std::unordered_set<std::string> for_itself_;
};

}  // namespace dckpt
