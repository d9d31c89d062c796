#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// A load by a registered planner: the planner's requests for the tensors of a state, and their
/// treatment after reading. Errors name the planner.
class PlannedLoad {
 public:
  /// `location` and `options` are those of the load, and must outlive it.
  PlannedLoad(std::unique_ptr<LoadPlanner> planner, const Location& location,
              const LoadOptions& options);

  /// Returns the state to load in place of `state`, which stays unchanged.
  StateDict prepared(const StateDict& state, const Metadata& metadata,
                     const Communicator& comm) const;

  /// Returns a reader that passes objects through the planner. This object must outlive it.
  std::unique_ptr<CheckpointReader> over(std::unique_ptr<CheckpointReader> reader) const;

  /// Returns the requests in place of each wanted tensor: none for one that is left out.
  /// Collective.
  std::vector<std::vector<ShardedTensor>> plan(const std::vector<ShardedTensor>& wanted,
                                               const Metadata& metadata, Communicator& comm);

  /// Returns whether the data stored under the key was requested only for tensors of other names.
  bool only_for_others(const std::string& key) const {
    return for_others_.contains(key) && !for_itself_.contains(key);
  }

  /// Returns the state's tensor if it is filled by parts or resolved, so that its request does not
  /// tell whether the ranks' parts fit together; null otherwise.
  const ShardedTensor* filled_tensor(std::size_t target) const {
    return filled_.contains(target) ? &wanted_[target] : nullptr;
  }

  bool is_empty(std::size_t target) const { return wanted_[target].numel() == 0; }

  /// Returns the tensor of the state in place of a requested one, with data if it was loaded.
  ShardedTensor restored(std::size_t target, const ShardedTensor& loaded) const;

  /// Returns whether a destination holds a part of such a tensor, or what it is made of.
  bool fills(const Tensor& destination) const { return parts_.contains(destination.data()); }
  /// Returns whether a planner makes the tensor of it: only this rank reads it.
  bool resolves(const Tensor& destination) const {
    const auto found = parts_.find(destination.data());
    return found != parts_.end() && !found->second->items.empty();
  }
  /// Called in any thread when all data has arrived in a destination that fills a tensor. Returns
  /// the state's tensor once it is complete.
  std::optional<ShardedTensor> arrived(const Tensor& destination);

 private:
  struct Filled;
  /// A part of a tensor of the state, and what it is made of, if it is resolved.
  struct Part {
    Part(Filled& filled, Tensor its) : of(filled), memory(std::move(its)) {}

    Filled& of;
    Tensor memory;
    std::vector<LoadItem> items{};
    std::vector<Tensor> read{};  ///< by item, until they have been committed
    std::atomic<std::size_t> missing = 0;
  };
  /// A tensor of the state that is not read in one piece into its own memory.
  struct Filled {
    std::size_t target = 0;
    Tensor memory;
    std::map<std::pair<Shape, Shape>, Part> parts{};  ///< by offsets and sizes
    std::atomic<std::size_t> missing = 0;             ///< parts
    std::atomic<bool> any = false;
  };

  LoadPlan local_plan(const Metadata& metadata, const Communicator& comm);
  LoadPlan global_plan(LoadPlan plan, Communicator& comm) const;
  ShardedTensor asked_for(const LoadItem& item, bool is_alone);
  Part& part_of(const LoadItem& item);
  void add_destination(const Tensor& memory, Part& part);
  void require_own_memory() const;

  const std::unique_ptr<LoadPlanner> planner_;
  const Location& location_;
  const LoadOptions& options_;
  const std::string who_;  ///< names the planner in errors
  std::vector<ShardedTensor> wanted_;
  std::map<std::size_t, Filled> filled_;        ///< by target
  std::map<const std::byte*, Part*> parts_;     ///< by destination
  std::unordered_set<std::string> for_others_;  ///< keys that are read for tensors of other names
  std::unordered_set<std::string> for_itself_;
};

}  // namespace dckpt
