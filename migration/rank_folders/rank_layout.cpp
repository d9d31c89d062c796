#include "migration/rank_folders/rank_layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "configs/policy/strategy_options.h"
#include "configs/yaml/schema.h"
#include "mapping/base/error.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {
RankFolderOptions read_rank_folder_options(const StrategySpec& strategy) {
  const auto size = config::optional_of(config::integer<std::int64_t>(1, kMostRankFolders));
  static const config::Schema<RankFolderOptions> schema{
      {config::field("tensor_model_parallel_size", &RankFolderOptions::tensor_model_parallel_size,
                     size),
       config::field("pipeline_model_parallel_size",
                     &RankFolderOptions::pipeline_model_parallel_size, size),
       config::field("expert_model_parallel_size", &RankFolderOptions::expert_model_parallel_size,
                     size),
       config::field("virtual_pipeline_model_parallel_size",
                     &RankFolderOptions::virtual_pipeline_model_parallel_size, size),
       config::field("transformer_impl", &RankFolderOptions::transformer_impl,
                     config::optional_of(config::choice(kTransformerImplNames)))}};
  return read_options(schema, strategy);
}

RankLayout choose_rank_layout(const RankFolderOptions& options, const Value* args) {
  RankLayout layout;
  ModelParallelRank& sizes = layout.sizes;
  const auto size = [&](std::optional<std::int64_t> given, const char* name) {
    const auto saved = given ? given : run_arg(args, name);
    if (!given && saved.value_or(1) != 1)
      layout.of_run.push_back(str_format("{} {}", name, *saved));
    if (saved.value_or(1) >= 1 && saved.value_or(1) <= kMostRankFolders) return saved.value_or(1);
    throw_error(ErrorCode::kInvalidArgument, "{}: found {}, expected a number from 1 to {}", name,
                *saved, kMostRankFolders);
  };
  sizes.tensor = size(options.tensor_model_parallel_size, "tensor_model_parallel_size");
  sizes.pipeline = size(options.pipeline_model_parallel_size, "pipeline_model_parallel_size");
  sizes.expert = size(options.expert_model_parallel_size, "expert_model_parallel_size");
  const bool own_chunks =
      options.virtual_pipeline_model_parallel_size || options.pipeline_model_parallel_size;
  layout.chunks = size(own_chunks ? options.virtual_pipeline_model_parallel_size.value_or(1)
                                  : options.virtual_pipeline_model_parallel_size,
                       "virtual_pipeline_model_parallel_size");
  if (sizes.tensor * sizes.pipeline > kMostRankFolders ||
      sizes.tensor * sizes.pipeline * sizes.expert > kMostRankFolders)
    throw_error(ErrorCode::kInvalidArgument,
                "tensor {}, pipeline {} and expert {} make more than {} rank folders", sizes.tensor,
                sizes.pipeline, sizes.expert, kMostRankFolders);
  if (layout.chunks > 1 && sizes.pipeline == 1)
    throw_error(ErrorCode::kInvalidArgument,
                "virtual_pipeline_model_parallel_size: a single pipeline stage has no chunks");
  return layout;
}

Value args_of_rank(Value args, const RankLayout& layout, const ModelParallelRank& rank,
                   const RankFolderOptions& options) {
  const ModelParallelRank& sizes = layout.sizes;
  const std::int64_t chunks = layout.chunks;
  Value& attributes = args.is_dict() ? args : args.mutable_opaque().states.front();
  Dict& all = attributes.mutable_dict();
  const auto set = [&](const char* name, Value value) {
    if (all.find(Value(name)) != nullptr) all.set(name, std::move(value));
  };
  all.set("tensor_model_parallel_size", sizes.tensor);
  all.set("pipeline_model_parallel_size", sizes.pipeline);
  if (sizes.expert > 1) all.set("expert_model_parallel_size", sizes.expert);
  if (chunks > 1) all.set("virtual_pipeline_model_parallel_size", chunks);
  set("expert_model_parallel_size", sizes.expert);
  set("expert_tensor_parallel_size", sizes.tensor);
  set("virtual_pipeline_model_parallel_size", chunks > 1 ? Value(chunks) : Value());
  set("num_layers_per_virtual_pipeline_stage",
      chunks > 1 ? Value(layout.layers_of_chunk()) : Value());
  for (const std::string& name : uneven_stages(&attributes))
    all.set(name, all.find(Value(name))->is(Value::Kind::kBool) ? Value(false) : Value());
  set("ckpt_format", "torch");
  set("use_dist_ckpt", false);
  if (options.transformer_impl)
    set("transformer_impl", name_of(kTransformerImplNames, *options.transformer_impl));

  const std::int64_t context = std::clamp<std::int64_t>(
      run_arg(&attributes, "context_parallel_size").value_or(1), 1, kMostRankFolders);
  const std::int64_t least = sizes.tensor * context * sizes.expert;
  const std::int64_t world = run_arg(&attributes, "world_size").value_or(0);
  const std::int64_t of_stage =
      world > 0 && world % (least * sizes.pipeline) == 0 ? world / sizes.pipeline : least;
  set("world_size", of_stage * sizes.pipeline);
  set("data_parallel_size", of_stage / sizes.tensor / context);
  set("rank", rank.pipeline * of_stage + rank.expert * context * sizes.tensor + rank.tensor);
  return args;
}

}  // namespace dckpt
