#pragma once

#include <memory>
#include <string>
#include <vector>

#include "configs/policy/conventions.h"
#include "migration/rank_folders/rank_layout.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"

namespace dckpt {

inline constexpr Conventions kRankFolderConventions{
    .objects_in_lists = false, .per_rank = true, .megatron_keys = true};

/// The inverse of join_ranks(): returns a checkpoint with whole tensors, under the keys of
/// Megatron's distributed checkpoints, as the files of rank folders. Each file is an object,
/// "mp_rank_00_001/model_optim_rng.pt", with everything but the parameters, which are none in its
/// `model` and tensors "mp_rank_00_001/model.decoder.layers.0.…" of the checkpoint. Layers are
/// numbered by stage, and divided evenly; embeddings that are also the output layer are on the last
/// stage, too. The args give the new sizes.
///
/// The findings list what rank folders cannot hold. Throws CheckpointError: (unsupported) for
/// optimizer state, and for parameters whose stage or partition is not known; (invalid argument)
/// for sizes that do not divide the model.
View split_ranks(std::unique_ptr<CheckpointReader> model, const RankFolderOptions& options);

}  // namespace dckpt
