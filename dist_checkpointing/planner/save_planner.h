#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/planning/save/local_plans.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The input of a planner. `state`, `shards` and `options` are valid until create_local_plan() has
/// returned: a planner keeps copies of what its later steps need.
struct SaveSetup {
  const StateDict& state;              ///< state of this rank, after SaveHooks::preprocess
  std::span<const LocalShard> shards;  ///< its leaves, without data: key, shape, box, replica
  const SaveOptions& options;
  int rank = 0;
  int ranks = 1;  ///< rank 0 is the coordinator
};

/// Decides what is stored, under which keys, by which rank, and as which bytes: DCP's SavePlanner.
/// Each rank makes one planner per save, which lives until the save has ended. The calls are:
///
///   every rank    set_up_planner, create_local_plan
///   rank 0        create_global_plan, unless the plans of the last save may be used again
///   every rank    begin_save, finish_plan
///   every rank    resolve_tensor, resolve_object: for items that `resolves` accepts, while data
///                 files are written, in several threads at once; in a background save, from the
///                 copies of the state
///
/// An error in any of them is thrown by the save on all ranks, and nothing is published. Plans are
/// checked: one that invents items, stores elements twice, stores only some elements of a rank's
/// tensor, or leaves holes in a tensor is an error (mismatch), too. A planner may leave out keys
/// and choose the places of chunks.
///
/// Derive from one of the planners below, and override the steps that differ. A class costs only
/// the checks of the steps that it overrides.
class SavePlanner {
 public:
  virtual ~SavePlanner() = default;

  virtual void set_up_planner(const SaveSetup& setup) = 0;

  /// Returns the items that this rank offers. Items may be left out, reordered, get another key (on
  /// all ranks that have the tensor) or, if resolve_tensor() converts them, another dtype (set
  /// `nbytes`, too). `source` and `source_begin` identify an item's data and must stay. An object
  /// keeps its cell: a new key ends as the old one does ("/shard_0_2").
  virtual SavePlan create_local_plan() = 0;

  /// Called after create_local_plan(), when the setup is no longer valid.
  virtual void forget_setup() {}

  /// Called on rank 0: decides who writes what, and makes the metadata of all ranks. Each access to
  /// a local plan decodes it again; create_default_global_save_plan() accesses each once.
  virtual GlobalPlan create_global_plan(const LocalPlans& plans) = 0;

  /// Receives the save's id, which is the same on all ranks and unique to the save. Readers of
  /// .metadata find it there (Metadata::storage_meta), also in copies and conversions to formats
  /// that have one.
  virtual void begin_save(const std::string& /*save_id*/) {}

  /// Returns the items that this rank writes. May change the sources of tensors, and nothing else.
  virtual SavePlan finish_plan(SavePlan plan) { return plan; }

  /// Returns whether the bytes of an item differ from those of the state. Called in any thread.
  virtual bool resolves(const WriteItem& /*item*/) const { return false; }
  /// Returns the elements to store for an item. `data` has the state's elements in their own dtype,
  /// contiguous in CPU memory, in the shape of the chunk, and is invalid after the call. The result
  /// has the item's dtype and the chunk's shape, and is contiguous in CPU memory. Called for whole
  /// items: each thread of save.io.threads needs memory for one, besides that of the result.
  [[nodiscard]] virtual Tensor resolve_tensor(const WriteItem& /*item*/, Tensor data) const {
    return data;
  }
  /// Returns the bytes to store for an object; `stored` and the result are torch.save files. Never
  /// called for the common state, which all readers need unchanged.
  [[nodiscard]] virtual Bytes resolve_object(const WriteItem& /*item*/, Bytes stored) const {
    return stored;
  }

  /// Returns everything that create_global_plan() depends on besides the local plans and the
  /// options. While it and the local plans stay the same, the last global plan is used again. If it
  /// is empty, as by default, the plan is never reused.
  [[nodiscard]] virtual std::optional<std::string> cache_key() const { return std::nullopt; }
};

/// PyTorch DCP's planner ("default"), the base of the built-in ones.
class DefaultSavePlanner : public SavePlanner {
 public:
  void set_up_planner(const SaveSetup& setup) override;
  SavePlan create_local_plan() override;
  void forget_setup() override { setup_.reset(); }
  GlobalPlan create_global_plan(const LocalPlans& plans) override;
  [[nodiscard]] std::optional<std::string> cache_key() const override { return ""; }

 protected:
  /// Called by create_global_plan(): may assign parts that several ranks have to others of these
  /// ranks. By default they are balanced by bytes.
  virtual void choose_writers(std::span<WriterChoice> /*parts*/) {}

  /// Valid only until create_local_plan() has returned. Throws CheckpointError (invalid argument)
  /// later, and before set_up_planner().
  const SaveSetup& setup() const;
  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }

 private:
  std::optional<SaveSetup> setup_;
  int rank_ = 0;
  int ranks_ = 1;
  GlobalPlanOptions global_;
};

/// Megatron-Core's planner ("mcore"): stores the main replicas of sharded tensors and objects.
class MCoreSavePlanner : public DefaultSavePlanner {};

/// HyperParallel's planner ("standard").
class StandardSavePlanner : public DefaultSavePlanner {};

/// Returns the items of a rank's state, by the built-in rules.
[[nodiscard]] SavePlan create_default_local_save_plan(const SaveSetup& setup);

/// Returns the rules that the options select, for create_default_global_save_plan().
[[nodiscard]] GlobalPlanOptions global_plan_options(const SaveOptions& options);

}  // namespace dckpt
