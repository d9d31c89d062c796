#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/enum_names.h"
#include "mapping/state/value.h"
#include "strategies/legacy_torch/rank_grid.h"

// The layout of written rank folders, and the args that describe it.

namespace dckpt {

/// The modules that a model is built of, which decide the names of its parameters.
enum class TransformerImpl : std::uint8_t { kLocal, kTransformerEngine };
inline constexpr EnumNames<TransformerImpl, 2> kTransformerImplNames{{
    {TransformerImpl::kLocal, "local"},
    {TransformerImpl::kTransformerEngine, "transformer_engine"},
}};

/// The layout of rank folders, in the words of Megatron's arguments. Empty fields are taken from
/// the checkpoint's args; sizes are 1 without them.
struct RankFolderOptions {
  std::optional<std::int64_t> tensor_model_parallel_size{};
  std::optional<std::int64_t> pipeline_model_parallel_size{};
  std::optional<std::int64_t> expert_model_parallel_size{};
  /// Model chunks of each stage. If empty, taken from the args if the pipeline's size is empty,
  /// too, else 1.
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size{};
  std::optional<TransformerImpl> transformer_impl{};
};
inline constexpr std::int64_t kMostRankFolders = std::int64_t{1} << 20;

struct RankLayout {
  ModelParallelRank sizes{1, 1, 1};
  std::int64_t chunks = 1;  ///< chunks of each pipeline stage
  std::int64_t layers = 0;  ///< layers of the model
  /// Sizes taken from the run's args, as no option gives them: "NAME SIZE".
  std::vector<std::string> of_run{};

  /// The number of chunks of all stages. Chunks are assigned to the stages in turn.
  std::int64_t stages() const { return sizes.pipeline * chunks; }
  std::int64_t layers_of_chunk() const { return layers / stages(); }
};

/// Takes sizes from the options, or else from the run's `args` (may be null), which `of_run` then
/// lists. The number of layers is not set. Throws CheckpointError (invalid argument) for impossible
/// sizes.
RankLayout choose_rank_layout(const RankFolderOptions& options, const Value* args);

/// Reads the strategy's own options. Throws CheckpointError (invalid argument) for mistakes in
/// them.
RankFolderOptions read_rank_folder_options(const StrategySpec& strategy);

/// Returns the args of a run, a Namespace or a dict, as a rank of the layout would have them. Sizes
/// that follow from others stay where they fit.
Value args_of_rank(Value args, const RankLayout& layout, const ModelParallelRank& rank,
                   const RankFolderOptions& options);

}  // namespace dckpt
