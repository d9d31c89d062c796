#pragma once

#include <memory>

#include "configs/policy/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Returns the strategy for Megatron's rank folders. It writes checkpoints in the form of
/// split_ranks(): each object is a file, "mp_rank_00/model_optim_rng.pt", and tensors are in the
/// file of their folder. Throws CheckpointError (unsupported) for io options that do not apply to
/// these files.
std::unique_ptr<SaveStrategy> make_rank_folder_strategy(const SaveOptions& options);

/// Returns what its write_data() would return, except that bytes of pickles are estimated.
WrittenItems measure_rank_folders(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
