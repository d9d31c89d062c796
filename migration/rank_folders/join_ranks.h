#pragma once

#include <memory>

#include "strategies/contract/reader.h"

namespace dckpt {

/// Returns Megatron's rank folders (open_legacy_torch) as one checkpoint: whole tensors under the
/// keys that they have in Megatron's distributed checkpoints, with layers stacked if they are
/// alike.
///
/// * Tensor, pipeline, virtual pipeline and expert parallel parts are put together, gated MLPs with
///   all gate rows before all others. Keys of Megatron-LM before Megatron-Core are understood, and
///   fused QKV of checkpoint_version 0 and 1 gets today's order of rows.
/// * State of the distributed optimizer (distrib_optim.pt, all generations since May 2023), which
///   lies in the gradient buffers' order (parameters from the last to the first), becomes
///   `optimizer.state.NAME.KEY`, as fully_sharded_model_space has it.
/// * `_extra_state` and RNG states become objects; the common state is that of the first rank.
///
/// Folders without a model stay as they are. Nothing but pickles and RNG states is read. Throws
/// CheckpointError: (unsupported) for a parameter whose partition is not known, which it names;
/// (corrupt) if parts do not fit together.
std::unique_ptr<CheckpointReader> join_ranks(std::unique_ptr<CheckpointReader> ranks);

}  // namespace dckpt
