#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/planning/save/local_plans.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// What a planner plans for. `state`, `shards` and `options` are there until create_local_plan()
/// has returned.
struct SaveSetup {
  const StateDict& state;              ///< of this rank, after SaveHooks::preprocess
  std::span<const LocalShard> shards;  ///< what is in it, without data: key, shape, box, replica
  const SaveOptions& options;
  int rank = 0;
  int ranks = 1;  ///< rank 0 is the coordinator
};

/// Decides what is stored, under which keys, by whom, and what bytes: DCP's SavePlanner. One is
/// made for each save on each rank, lives until the save has ended, and sees these calls:
///
///   every rank    set_up_planner, create_local_plan
///   rank 0        create_global_plan, unless the plans of the last save may be used again
///   every rank    begin_save, finish_plan
///   every rank    resolve_tensor, resolve_object: for items that `resolves` accepts, while data
///                 files are written, in several threads at once; of a save in the background, from
///                 the copies of the state
///
/// An error in any of them is thrown by the save on all ranks, and nothing is published. Plans are
/// checked: one that invents items, stores elements twice, only some of a tensor's elements here,
/// or leaves holes in a tensor is an error (mismatch), too. Keys that a planner leaves out, and
/// places that it gives chunks, are its decision.
///
/// Derive from one of the planners below, and override what is to be another. A class that
/// overrides nothing but create_local_plan costs what this costs, and so on.
class SavePlanner {
 public:
  virtual ~SavePlanner() = default;

  virtual void set_up_planner(const SaveSetup& setup) = 0;

  /// What this rank has to offer. Items may be left out, put in another order, get another key (on
  /// all ranks that have the tensor) or, if resolve_tensor() converts them, another dtype (set
  /// `nbytes`, too). `source` and `source_begin` say what an item is made of, and stay.
  virtual SavePlan create_local_plan() = 0;

  /// Rank 0: who writes what, and the metadata of all. Each local plan that is asked for is decoded
  /// anew; create_default_global_save_plan() asks for each once.
  virtual GlobalPlan create_global_plan(const LocalPlans& plans) = 0;

  /// `save_id` is the same on all ranks and another one for each save. Readers of .metadata find it
  /// there (Metadata::storage_meta), also in copies and conversions to formats that have one.
  virtual void begin_save(const std::string& /*save_id*/) {}

  /// What this rank is about to write. May point to other sources, and nothing else.
  virtual SavePlan finish_plan(SavePlan plan) { return plan; }

  /// Whether the bytes of an item are not those of the state. Called in any thread.
  virtual bool resolves(const WriteItem& /*item*/) const { return false; }
  /// The elements to store for an item. `data`: those of the state, of their own dtype, contiguous
  /// in CPU memory, in the shape of the chunk; gone when the call has returned. The result has the
  /// item's dtype and the chunk's shape, and is contiguous in CPU memory. Called for whole items:
  /// memory for one of each thread of save.io.threads, besides what the result takes.
  [[nodiscard]] virtual Tensor resolve_tensor(const WriteItem& /*item*/, Tensor data) const {
    return data;
  }
  /// The bytes to store for an object: `stored` is a torch.save file, and so must the result be.
  /// Never asked for the common state, which all readers need as it is.
  [[nodiscard]] virtual Bytes resolve_object(const WriteItem& /*item*/, Bytes stored) const {
    return stored;
  }

  /// What create_global_plan() depends on besides the local plans and the options. While it stays
  /// the same, and the local plans do, the last global plan is used again. None, as by default: it
  /// never is.
  [[nodiscard]] virtual std::optional<std::string> cache_key() const { return std::nullopt; }
};

/// PyTorch DCP's planner ("default"), and what the built-in ones have in common.
class DefaultSavePlanner : public SavePlanner {
 public:
  void set_up_planner(const SaveSetup& setup) override;
  SavePlan create_local_plan() override;
  GlobalPlan create_global_plan(const LocalPlans& plans) override;
  [[nodiscard]] std::optional<std::string> cache_key() const override { return ""; }

 protected:
  /// Called by create_global_plan(): may give parts that several ranks have to others of these.
  /// Balanced by bytes unless it does.
  virtual void choose_writers(std::span<WriterChoice> /*parts*/) {}

  /// It is for create_local_plan(), as what it refers to is gone afterwards.
  const SaveSetup& setup() const { return *setup_; }
  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }

 private:
  std::optional<SaveSetup> setup_;
  int rank_ = 0;
  int ranks_ = 1;
  GlobalPlanOptions global_;
};

/// Megatron-Core's ("mcore"): main replicas of sharded tensors and objects.
class MCoreSavePlanner : public DefaultSavePlanner {};

/// HyperParallel's ("standard").
class StandardSavePlanner : public DefaultSavePlanner {};

/// The items of what a rank has, by the built-in rules.
[[nodiscard]] SavePlan create_default_local_save_plan(const SaveSetup& setup);

/// The rules that the options say, for create_default_global_save_plan().
[[nodiscard]] GlobalPlanOptions global_plan_options(const SaveOptions& options);

}  // namespace dckpt
