#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/conventions.h"
#include "mapping/base/enum_names.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Which modules a model is built of; they decide what its parameters are called.
enum class TransformerImpl : std::uint8_t { kLocal, kTransformerEngine };
inline constexpr EnumNames<TransformerImpl, 2> kTransformerImplNames{{
    {TransformerImpl::kLocal, "local"},
    {TransformerImpl::kTransformerEngine, "transformer_engine"},
}};

/// The layout of rank folders, in the words of Megatron's arguments. What is empty is as in the
/// checkpoint's args, or 1.
struct RankFolderOptions {
  std::optional<std::int64_t> tensor_model_parallel_size{};
  std::optional<std::int64_t> pipeline_model_parallel_size{};
  std::optional<std::int64_t> expert_model_parallel_size{};
  /// Chunks of each stage. Empty: as in the args, if the pipeline's size is empty, too; else 1.
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size{};
  std::optional<TransformerImpl> transformer_impl{};
};
inline constexpr Conventions kRankFolderConventions{.objects_in_lists = false, .per_rank = true};
inline constexpr std::int64_t kMostRankFolders = std::int64_t{1} << 20;

/// The inverse of join_ranks(): a checkpoint with whole tensors under the keys of Megatron's
/// distributed checkpoints, as the files of rank folders. Each file is an object,
/// "mp_rank_00_001/model_optim_rng.pt", with everything but the parameters, whose places in
/// `model` hold none; these are the tensors "mp_rank_00_001/model.decoder.layers.0.…". Layers are
/// numbered by stage, and shared out evenly; embeddings that are also the output layer are on the
/// last stage, too. The args say the new sizes.
///
/// Says in `remarks` what has no place there. Throws CheckpointError: (unsupported) for optimizer
/// state, and for parameters whose stage or partition is not known; (invalid argument) for sizes
/// that do not divide the model.
std::unique_ptr<CheckpointReader> split_ranks(std::unique_ptr<CheckpointReader> model,
                                              const RankFolderOptions& options,
                                              std::vector<std::string>& remarks);

}  // namespace dckpt
