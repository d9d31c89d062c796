#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "mapping/base/enum_names.h"
#include "mapping/state/value.h"
#include "strategies/legacy_torch/rank_grid.h"

// For how many ranks folders are written, and what the args in them say of it.

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
inline constexpr std::int64_t kMostRankFolders = std::int64_t{1} << 20;

struct RankLayout {
  ModelParallelRank sizes{1, 1, 1};
  std::int64_t chunks = 1;            ///< of each pipeline stage
  std::int64_t layers = 0;            ///< of the model
  std::vector<std::string> of_run{};  ///< sizes that are the run's, as no option gives them

  /// Chunks of all stages; they follow each other round the stages.
  std::int64_t stages() const { return sizes.pipeline * chunks; }
  std::int64_t layers_of_chunk() const { return layers / stages(); }
};

/// What the options say, or else `args` of the run (null: there are none), which `of_run` then
/// names.
/// The number of layers is not known yet. Throws CheckpointError (invalid argument) for sizes that
/// cannot be.
RankLayout choose_rank_layout(const RankFolderOptions& options, const Value* args);

/// The strategy's own options. Throws CheckpointError (invalid argument) for mistakes in them.
RankFolderOptions read_rank_folder_options(const StrategySpec& strategy);

/// The args of a run, a Namespace or a dict, as a rank of the layout would have them. Sizes that
/// follow from others stay where they fit.
Value args_of_rank(Value args, const RankLayout& layout, const ModelParallelRank& rank,
                   const RankFolderOptions& options);

}  // namespace dckpt
