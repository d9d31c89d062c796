#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/options.h"
#include "mapping/base/api.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// A tensor that a rank's state asks for, and what is read for it.
struct LoadItem {
  std::size_t target = 0;  ///< which one of the state: its place in LoadSetup::wanted
  /// What is read: key, dtype, global shape and offset are those of the stored tensor. It has no
  /// data.
  ShardedTensor tensor;
  DType wanted = DType::kFloat32;  ///< of the state's tensor
};

/// What a rank reads. The state's tensors that are in no item keep their elements.
using LoadPlan = std::vector<LoadItem>;

/// What a planner plans for; everything is there until create_local_plan() has returned.
struct LoadSetup {
  /// Without data: the state's sharded tensors and, in a load by DCP's rules, its plain tensors
  /// that are stored as such, under their paths. Factories have been applied.
  std::span<const ShardedTensor> wanted;
  const Metadata& metadata;  ///< what is stored
  const LoadOptions& options;
  int rank = 0;
  int ranks = 1;
};

/// Decides what is read for a state, and what becomes of it: DCP's LoadPlanner. One is made for
/// each load on each rank, and sees these calls on every rank:
///
///   prepare_state, set_up_planner, create_local_plan
///   create_global_plan, on rank 0, if the planner has one
///   finish_plan
///   resolve_tensor    for items that `resolves` accepts
///   commit_tensor     for these, once all of a tensor's elements have been read
///   load_object       for each object, the common state aside
///
/// The last two are called in several threads at once. Who reads what several ranks need is not a
/// planner's decision: with load.parallel the ranks share it out, but for items that a planner
/// resolves, which each rank reads by itself.
///
/// Keys, shapes and coverage are checked for what the plan says. An error in any call is thrown by
/// the load on all ranks; tensors may be partly filled then.
class LoadPlanner {
 public:
  virtual ~LoadPlanner() = default;

  /// Returns the state that is loaded in place of `state`: it may have other entries, for example
  /// those that the metadata list. `setup.wanted` is empty so far.
  [[nodiscard]] virtual StateDict prepare_state(StateDict state, const LoadSetup& /*setup*/) {
    return state;
  }

  virtual void set_up_planner(const LoadSetup& setup) = 0;

  /// An item may be left out, read from a tensor of another name, from elsewhere in it (global
  /// shape and offset) and, if it is resolved, have another dtype. The local shape stays.
  virtual LoadPlan create_local_plan() = 0;
  /// Rank 0 gets the plans of all ranks, by rank, and returns the one that each of them gets
  /// instead. The planner's entry in the registry says whether this step is called
  /// (LoadPlannerEntry::plans_globally).
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) { return plans; }
  /// The last look at the plan, which has been checked; what it returns is checked again.
  virtual LoadPlan finish_plan(LoadPlan plan) { return plan; }

  /// Whether what is read for an item becomes the state's tensor by commit_tensor(). Called in any
  /// thread.
  virtual bool resolves(const LoadItem& /*item*/) const { return false; }
  /// The memory to read a resolved item into: of its dtype and `shape`, contiguous, in CPU memory,
  /// and of nobody else. It is released when the item has been committed.
  [[nodiscard]] virtual Tensor resolve_tensor(const LoadItem& item, const Shape& shape) const {
    return Tensor::empty(item.tensor.dtype, shape);
  }
  /// The elements of the state's tensor, made of what was read: contiguous in CPU memory, in the
  /// same shape and of the dtype `item.wanted`.
  [[nodiscard]] virtual Tensor commit_tensor(const LoadItem& /*item*/, Tensor read) const {
    return read;
  }

  /// The value of an object, made of the stored one. `key` is unique: with the place in the grid.
  [[nodiscard]] virtual Value load_object(const std::string& /*key*/, Value stored) const {
    return stored;
  }
};

/// PyTorch DCP's planner, and what others derive from: everything is read as the state asks for it.
class DefaultLoadPlanner : public LoadPlanner {
 public:
  void set_up_planner(const LoadSetup& setup) override { setup_.emplace(setup); }
  LoadPlan create_local_plan() override;

 protected:
  /// It is for create_local_plan(), as what it refers to is gone afterwards.
  const LoadSetup& setup() const { return *setup_; }

 private:
  std::optional<LoadSetup> setup_;
};

/// The stored checkpoint decides by whose rules it is loaded; these say for whom a planner is
/// meant.
class MCoreLoadPlanner : public DefaultLoadPlanner {};
class StandardLoadPlanner : public DefaultLoadPlanner {};

/// An item for each tensor that the state asks for.
[[nodiscard]] LoadPlan create_default_local_load_plan(const LoadSetup& setup);

}  // namespace dckpt
