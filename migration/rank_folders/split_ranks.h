#pragma once

#include <memory>
#include <string>
#include <vector>

#include "configs/conventions.h"
#include "migration/rank_folders/rank_layout.h"
#include "strategies/contract/reader.h"
#include "strategies/views/view.h"

namespace dckpt {

inline constexpr Conventions kRankFolderConventions{
    .objects_in_lists = false, .per_rank = true, .megatron_keys = true};

/// The inverse of join_ranks(): a checkpoint with whole tensors under the keys of Megatron's
/// distributed checkpoints, as the files of rank folders. Each file is an object,
/// "mp_rank_00_001/model_optim_rng.pt", with everything but the parameters, whose places in
/// `model` hold none; these are the tensors "mp_rank_00_001/model.decoder.layers.0.…". Layers are
/// numbered by stage, and shared out evenly; embeddings that are also the output layer are on the
/// last stage, too. The args say the new sizes.
///
/// The findings say what has no place there. Throws CheckpointError: (unsupported) for optimizer
/// state, and for parameters whose stage or partition is not known; (invalid argument) for sizes
/// that do not divide the model.
View split_ranks(std::unique_ptr<CheckpointReader> model, const RankFolderOptions& options);

}  // namespace dckpt
