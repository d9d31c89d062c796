#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace DCKPT_API dckpt {
namespace torch {

class OptimizerKind;

/// Every rank that has the tensor holds all of it.
struct Replicate {
  /// Number of this copy among those ranks, data parallel ones not counted: 0 is saved.
  std::int64_t copy = 0;
};

/// This rank holds an equal piece, as ShardedTensor::from_rank_offsets takes it.
struct RankOffsets {
  std::vector<RankOffset> offsets{};
  std::int64_t prepend_axis_num = 0;
  std::int64_t copy = 0;  ///< as in Replicate, among the ranks with the same piece
};

using Sharding = std::variant<Replicate, RankOffsets>;

/// Facts that a module does not know about itself. The defaults are those of a single rank; a data
/// parallel job sets `rank` and `size`.
struct ModuleStateOptions {
  int rank = 0;  ///< rank in the whole job
  int size = 1;
  /// The rank among those that train the same tensors on other data. Empty: `rank`, as if all did.
  std::optional<int> data_rank{};
  /// For tensor and pipeline parallel jobs: the part that this rank holds of a parameter or buffer.
  /// Empty: Replicate for all.
  std::function<Sharding(const std::string& name, const at::Tensor& tensor)> shard{};
  /// Returns the names of tensors in the whole model, if a rank counts its layers from 0 or stacks
  /// them. Tensors of several ranks, or of one with different offsets, form one tensor under the
  /// same name.
  std::function<std::string(const std::string& name)> whole_name{};
  /// The prefix of the names of parameters and buffers in their keys.
  std::string prefix = "model.";
  /// ZeRO: each data parallel rank's optimizer has parameters of its own: some of the module's, or
  /// 1-D pieces of their memory, which may extend over several adjacent ones.
  bool distributed_optimizer = false;
  /// Saves the default generators of the CPU and of the GPUs that the module is on, as the object
  /// `rng_state` of each rank. Under another number of ranks, loads keep the generators as they are
  /// (load.objects).
  bool rng = true;
  /// A scheduler whose counter is saved and restored; its arguments are not. Must be null for
  /// schedulers whose steps depend on more than their counter and the learning rates.
  ::torch::optim::LRScheduler* scheduler = nullptr;
  /// Describes an optimizer that is not of libtorch (<dckpt/torch_optimizer.h>), or one of libtorch
  /// in another way. Must outlive the call.
  const OptimizerKind* optimizer_kind = nullptr;
};

/// Describes a module and its optimizer for save() and load(): parameters and buffers under
/// "model.NAME", the optimizer's state under "optimizer.state.STATE.NAME", options of parameter
/// groups as common state. The tensors share their memory. Where the optimizer has no state yet, as
/// before its first step, there are zeros for it, unless the parameter is frozen (needs no
/// gradient). The tree is of this moment: steps of the optimizer make new state and advance its
/// counters, so describe it again before the next save. Tied parameters are under each of their
/// names; their optimizer state is under the first.
///
/// Supports SGD, Adam, AdamW, RMSprop, Adagrad, and others by `optimizer_kind`. Throws
/// CheckpointError (unsupported) for unknown ones; (invalid argument) for parameters of the
/// optimizer that are not of the module, for a sharding that does not fit its tensor, and for state
/// that is not shaped as its StateCut says.
StateDict sharded_state(const ::torch::nn::Module& module,
                        const ::torch::optim::Optimizer& optimizer,
                        const ModuleStateOptions& options = {});
/// Describes the module alone, and with `rng` the generators.
StateDict sharded_state(const ::torch::nn::Module& module, const ModuleStateOptions& options = {});

/// Finishes a load into `state`, which sharded_state() made with the same arguments: gives the
/// optimizer its state, counters and the options of its groups, and sets generators and scheduler.
/// The next step is the one that followed the save, bit for bit. Tensors of `state` in other memory
/// than the module's and the optimizer's are copied. Throws CheckpointError (mismatch) if the state
/// is of another kind of optimizer, of other parameter groups or of another scheduler, or lacks
/// something; then only tensors that the load filled have changed.
void restore(::torch::nn::Module& module, ::torch::optim::Optimizer& optimizer,
             const StateDict& state, const ModuleStateOptions& options = {});
void restore(::torch::nn::Module& module, const StateDict& state,
             const ModuleStateOptions& options = {});

}  // namespace torch
}  // namespace dckpt
