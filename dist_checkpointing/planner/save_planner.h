#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/planning/save/local_plans.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// The input of a planner, valid until create_local_plan() has returned: a planner keeps copies of
/// what its later steps need.
struct SaveSetup {
  const StateDict& state;              ///< state of this rank, after prepare_state()
  std::span<const LocalShard> shards;  ///< its leaves, without data: key, shape, box, replica
  std::span<const Tensor> tensors;     ///< the data of shards, by TensorShard::source
  std::span<const Bytes> objects;      ///< as torch.save files, by ObjectShard::source
  const Location& location;            ///< as it was passed to the save
  const SaveOptions& options;
  int rank = 0;
  int ranks = 1;  ///< rank 0 is the coordinator
};

/// Decides what is stored, under which keys, by which rank, and as which bytes: DCP's SavePlanner.
/// Each rank makes one planner per save, which lives until the save has ended. The calls are:
///
///   every rank    prepare_state, set_up_planner, create_local_plan
///   rank 0        create_global_plan, unless the plans of the last save may be used again
///   every rank    begin_save, finish_plan
///   every rank    resolve_tensor, transform_object: for items that `resolves` accepts, while data
///                 files are written, in several threads at once; in a background save, from the
///                 copies of the state
///   every rank    end_save
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

  /// Returns the state to save in place of `state`, whose tensors may be views of others or new.
  /// `setup` has no shards and no data yet.
  [[nodiscard]] virtual StateDict prepare_state(StateDict state, const SaveSetup& /*setup*/) {
    return state;
  }

  virtual void set_up_planner(const SaveSetup& setup) = 0;

  /// Returns the items that this rank offers. Items may be left out, reordered, get another key (on
  /// all ranks that have the tensor) or, if resolve_tensor() converts them, another dtype or
  /// another shape (`size`, `chunk`, and the shape of the state's elements in `source_shape`); set
  /// `nbytes`, too. `source` and `source_begin` identify an item's data and must stay. An object
  /// keeps its cell: a new key ends as the old one does ("/shard_0_2").
  /// DefaultSavePlanner::add_tensor() and add_object() make items of the planner's own.
  virtual SavePlan create_local_plan() = 0;

  /// The tensors and objects that a planner has added. Their sources are numbered after the
  /// state's.
  struct Added {
    std::vector<LocalShard> shards{};
    std::vector<Tensor> tensors{};
    std::vector<Bytes> objects{};
  };
  /// Called after create_local_plan().
  virtual Added take_added() { return {}; }

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
  /// contiguous in CPU memory, in the shape of the chunk, or in `source_shape`. The result
  /// has the item's dtype and the chunk's shape, and is contiguous in CPU memory. Called for whole
  /// items: each thread of save.io.threads needs memory for one, besides that of the result.
  [[nodiscard]] virtual Tensor resolve_tensor(const WriteItem& /*item*/, Tensor data) const {
    return data;
  }
  /// Returns the bytes to store for an object; `stored` and the result are torch.save files. Never
  /// called for the common state, which all readers need unchanged.
  [[nodiscard]] virtual Bytes transform_object(const WriteItem& /*item*/, Bytes stored) const {
    return stored;
  }

  /// Called once when the save has ended, in any thread: without an error when the checkpoint is
  /// published, otherwise with the reason why it is not. Whatever it throws is logged.
  virtual void end_save(const CheckpointError* /*failure*/) {}

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
  Added take_added() override { return std::move(added_); }
  GlobalPlan create_global_plan(const LocalPlans& plans) override;
  [[nodiscard]] std::optional<std::string> cache_key() const override { return ""; }

 protected:
  /// Called by create_global_plan(): may assign parts that several ranks have to others of these
  /// ranks. By default they are balanced by bytes.
  virtual void choose_writers(std::span<WriterChoice> /*parts*/) {}

  /// Valid only until create_local_plan() has returned. Throws CheckpointError (invalid argument)
  /// later, and before set_up_planner().
  const SaveSetup& setup() const;
  /// Return the data of an item of the state, as long as the setup is valid.
  const Tensor& lookup_tensor(const WriteItem& item) const { return setup().tensors[item.source]; }
  const Bytes& lookup_object(const WriteItem& item) const { return setup().objects[item.source]; }

  /// Adds a tensor or object of the planner's own to the save and returns its items for the local
  /// plan. Main replicas need data. Its key must be none of the state's; like those of the state,
  /// its shards on all ranks make up the whole. Call them from create_local_plan() only.
  [[nodiscard]] SavePlan add_tensor(const ShardedTensor& tensor);
  [[nodiscard]] WriteItem add_object(const ShardedObject& object);

  int rank() const noexcept { return rank_; }
  int ranks() const noexcept { return ranks_; }

 private:
  std::optional<SaveSetup> setup_;
  int rank_ = 0;
  int ranks_ = 1;
  GlobalPlanOptions global_;
  Added added_;
};

/// Megatron-Core's planner ("mcore"): stores the main replicas of sharded tensors and objects.
class MCoreSavePlanner : public DefaultSavePlanner {};

/// HyperParallel's planner ("standard").
class StandardSavePlanner : public DefaultSavePlanner {};

/// Returns the items of a rank's state, by the built-in rules.
[[nodiscard]] SavePlan create_default_local_save_plan(const SaveSetup& setup);

/// Returns the plans of all ranks without the items that others write: of several holders of a
/// part, the one with the fewest bytes so far writes it, or the lowest rank. Throws CheckpointError
/// (mismatch) if ranks disagree on a key.
[[nodiscard]] std::vector<SavePlan> dedup_save_plans(std::span<const SavePlan> plans,
                                                     bool save_to_lowest_rank = false);

/// Returns the rules that the options select, for create_default_global_save_plan().
[[nodiscard]] GlobalPlanOptions global_plan_options(const SaveOptions& options);

}  // namespace dckpt
