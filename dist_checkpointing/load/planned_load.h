#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A load by a registered planner: the planner's requests for the tensors of a state, and their
/// treatment after reading. Errors name the planner.
class PlannedLoad {
 public:
  /// `plans_globally` is true if the planner decides on rank 0 for all ranks.
  PlannedLoad(std::unique_ptr<LoadPlanner> planner, const std::string& name, bool plans_globally);

  /// Returns the state to load in place of `state`, which stays unchanged.
  StateDict prepared(const StateDict& state, const Metadata& metadata, const LoadOptions& options,
                     const Communicator& comm) const;

  /// Returns a reader that passes objects through the planner. This object must outlive it.
  std::unique_ptr<CheckpointReader> over(std::unique_ptr<CheckpointReader> reader) const;

  /// Returns the request in place of each wanted tensor, or nothing for one that is left out.
  /// Collective.
  std::vector<std::optional<ShardedTensor>> plan(const std::vector<ShardedTensor>& wanted,
                                                 const Metadata& metadata,
                                                 const LoadOptions& options, Communicator& comm);

  /// Returns whether the data stored under the key was requested only for tensors of other names.
  bool only_for_others(const std::string& key) const {
    return for_others_.contains(key) && !for_itself_.contains(key);
  }

  /// Returns the tensor of the state in place of the requested one, with data if it was loaded.
  ShardedTensor restored(std::size_t target, const ShardedTensor& loaded) const;

  /// Returns whether a destination belongs to the planner; only this rank reads it, and it is
  /// committed once.
  bool resolves(const Tensor& destination) const { return resolved_.contains(destination.data()); }
  /// Called in any thread when all data has arrived in `destination`. Returns the filled tensor.
  Tensor commit(const Tensor& destination);

 private:
  struct Resolved {
    LoadItem item;
    Tensor read;         ///< tensor to read into, until it has been committed
    Tensor destination;  ///< tensor of the state
    bool committed = false;
  };

  LoadPlan local_plan(const Metadata& metadata, const LoadOptions& options,
                      const Communicator& comm);
  LoadPlan global_plan(LoadPlan plan, Communicator& comm) const;
  void check(const LoadPlan& plan) const;
  ShardedTensor asked_for(const LoadItem& item);
  void require_own_memory() const;

  const std::unique_ptr<LoadPlanner> planner_;
  const std::string who_;  ///< names the planner in errors
  const bool plans_globally_;
  std::vector<ShardedTensor> wanted_;
  std::map<const std::byte*, Resolved> resolved_;
  std::map<std::size_t, const std::byte*> of_target_;
  std::unordered_set<std::string> for_others_;  ///< keys that are read for tensors of other names
  std::unordered_set<std::string> for_itself_;
};

}  // namespace dckpt
