#pragma once

#include <memory>

#include "configs/options.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Megatron's rank folders as a strategy. It writes checkpoints in the form of split_ranks():
/// each object is a file, "mp_rank_00/model_optim_rng.pt", and tensors are in the file of their
/// folder. Throws CheckpointError (unsupported) for io options that are about other files.
std::unique_ptr<SaveStrategy> make_rank_folder_strategy(const SaveOptions& options);

/// What write_data() of it would return, except that bytes of pickles are estimated.
WrittenItems measure_rank_folders(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
