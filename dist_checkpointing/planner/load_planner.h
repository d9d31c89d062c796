#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// A box of a stored tensor, and what is filled with it: a tensor of a rank's state, or a part.
struct LoadItem {
  std::size_t target = 0;  ///< position of the state's tensor in LoadSetup::wanted
  /// The box to read, without data: key, dtype, global shape and offset are those of the stored
  /// tensor.
  ShardedTensor tensor;
  DType wanted = DType::kFloat32;  ///< dtype of the state's tensor
  /// The part of the state's tensor that is filled, in the space of its data_shape(): its elements
  /// on this rank. All of it, if there is none.
  std::optional<Box> part{};
};

/// The items that a rank reads. Those of one tensor fill each of its elements once. The state's
/// tensors that are in no item keep their elements.
using LoadPlan = std::vector<LoadItem>;

/// The input of a planner, valid until create_local_plan() has returned: a planner keeps copies of
/// what its later steps need.
struct LoadSetup {
  /// Requested tensors, with the memory to fill where the state has some: its sharded tensors and,
  /// in a load by DCP's rules, its plain tensors that are stored as such, under their paths.
  /// Factories have been applied.
  std::span<const ShardedTensor> wanted;
  const Metadata& metadata;  ///< of the checkpoint; storage_meta has the id of its save
  const Location& location;  ///< as it was passed to the load
  const LoadOptions& options;
  int rank = 0;
  int ranks = 1;
};

/// Decides which stored data is read for a state, and how it is used: DCP's LoadPlanner. Each rank
/// makes one planner per load. The calls on every rank are:
///
///   prepare_state, set_up_planner, create_local_plan
///   create_global_plan, on rank 0, if the planner has one
///   finish_plan
///   resolve_tensor    for items that `resolves` accepts
///   commit_tensors    for these, once all elements have been read
///   load_bytes        for each object, the common state aside
///
/// The last two are called in several threads at once. A planner does not decide who reads data
/// that several ranks need: with load.parallel the ranks share the reading, except for items that a
/// planner resolves, which each rank reads by itself.
///
/// Keys, shapes and coverage are checked for the plan. An error in any call is thrown by the load
/// on all ranks; tensors may be partly filled then.
class LoadPlanner {
 public:
  virtual ~LoadPlanner() = default;

  /// Returns the state to load in place of `state`: it may have other entries, for example those
  /// that the metadata list. `setup.wanted` is still empty.
  [[nodiscard]] virtual StateDict prepare_state(StateDict state, const LoadSetup& /*setup*/) {
    return state;
  }

  /// Returns the tensors that the planner makes of those that are stored: what readers without a
  /// state see (OpenOptions::contents, load_state_dict(), the tool), in place of
  /// `setup.metadata.tensors`, which this returns by default. Key, dtype and size matter, and the
  /// chunks if they cover the tensor: it is read by them, in pieces. For the pieces of all of these
  /// tensors, as `wanted`, the planner is set up and plans like one of a single rank.
  [[nodiscard]] virtual std::vector<TensorStorageMetadata> contents(const LoadSetup& setup) const;

  virtual void set_up_planner(const LoadSetup& setup) = 0;

  /// Returns this rank's items. A tensor may be left out, read from a tensor of another name or
  /// from another place in it (global shape and offset), or be put together from parts. The
  /// data_shape() of an item is that of its part. If it is resolved, it may be another one, and the
  /// dtype, too; and several resolved items may fill the same part together.
  virtual LoadPlan create_local_plan() = 0;
  /// Called after create_local_plan(), when the setup is no longer valid.
  virtual void forget_setup() {}
  /// Receives on rank 0 the plans of all ranks, by rank, and returns the plan that each of them
  /// gets instead. The planner's entry in the registry says whether this step is called
  /// (LoadPlannerEntry::plans_globally).
  virtual std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) { return plans; }
  /// May change the checked plan a last time; the result is checked again.
  virtual LoadPlan finish_plan(LoadPlan plan) { return plan; }

  /// Returns whether commit_tensor() makes the state's elements of the data read for an item.
  /// Called in any thread.
  virtual bool resolves(const LoadItem& /*item*/) const { return false; }
  /// Returns the memory to read a resolved item into: of its dtype and `shape`, its data_shape(),
  /// contiguous, in CPU memory, and not shared. It is released when the item has been committed.
  [[nodiscard]] virtual Tensor resolve_tensor(const LoadItem& item, const Shape& shape) const {
    return Tensor::empty(item.tensor.dtype, shape);
  }
  /// Returns the elements of the part, made of the data read for its one item: contiguous in CPU
  /// memory, in the shape of `LoadItem::part` (without one, of the state's tensor) and of the dtype
  /// `item.wanted`.
  [[nodiscard]] virtual Tensor commit_tensor(const LoadItem& /*item*/, Tensor read) const {
    return read;
  }
  /// Returns the same for a part that several resolved items fill together, such as a quantized
  /// tensor and its scales: `read` is in the order of `items`, which is that of the plan. Called
  /// for one item, too; by default it passes it on, and refuses several.
  [[nodiscard]] virtual Tensor commit_tensors(std::span<const LoadItem> items,
                                              std::vector<Tensor> read) const;

  /// Returns the value of an object, made of the stored one. `key` is unique: it includes the place
  /// in the grid.
  [[nodiscard]] virtual Value load_bytes(const std::string& /*key*/, Value stored) const {
    return stored;
  }
};

/// PyTorch DCP's planner, the base of others: reads everything as the state requests it.
class DefaultLoadPlanner : public LoadPlanner {
 public:
  void set_up_planner(const LoadSetup& setup) override { setup_.emplace(setup); }
  LoadPlan create_local_plan() override;
  void forget_setup() override { setup_.reset(); }

 protected:
  /// Valid only until create_local_plan() has returned. Throws CheckpointError (invalid argument)
  /// later, and before set_up_planner().
  const LoadSetup& setup() const;
  /// Returns the state's tensor that an item fills, as long as the setup is valid.
  const ShardedTensor& lookup_tensor(const LoadItem& item) const {
    return setup().wanted[item.target];
  }

 private:
  std::optional<LoadSetup> setup_;
};

/// Bases that say for whose checkpoints a planner is meant. The stored checkpoint decides by whose
/// rules it is loaded.
class MCoreLoadPlanner : public DefaultLoadPlanner {};
class StandardLoadPlanner : public DefaultLoadPlanner {};

/// Returns an item for each tensor that the state requests.
[[nodiscard]] LoadPlan create_default_local_load_plan(const LoadSetup& setup);

/// Returns the plans of all ranks as they are: each rank reads what it has planned.
[[nodiscard]] std::vector<LoadPlan> create_default_global_load_plan(std::vector<LoadPlan> plans);

/// Returns what is read of a stored tensor (a position in the metadata) for boxes in its global
/// shape: each box is the destination of its number.
[[nodiscard]] std::vector<ReadItem> create_read_items_for_chunk_list(const Metadata& metadata,
                                                                     std::uint32_t tensor,
                                                                     std::span<const Box> chunks);

}  // namespace dckpt
