#pragma once

#include <memory>
#include <string>
#include <vector>

#include "configs/options.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Megatron's rank folders as a strategy. It writes checkpoints in the form of arrange_ranks():
/// each object is a file, "mp_rank_00/model_optim_rng.pt", and tensors are in the file of their
/// folder. Throws CheckpointError (unsupported) for io options that are about other files, and
/// (invalid argument) for options that are not those of RankFolderOptions.
std::unique_ptr<SaveStrategy> make_rank_folder_strategy(const SaveOptions& options);

/// What write_data() of it would return, except that bytes of pickles are estimated.
WrittenItems measure_rank_folders(const SaveOptions& options, int rank, const SavePlan& plan);

/// split_ranks() with the strategy's options.
std::unique_ptr<CheckpointReader> arrange_ranks(std::unique_ptr<CheckpointReader> model,
                                                const SaveOptions& options,
                                                std::vector<std::string>& remarks);

}  // namespace dckpt
