#include "checkpoint.h"

#include <stdexcept>

namespace gpt {
namespace {

dckpt::Value args(const ModelConfig& config) {
  dckpt::Value args;
  args["num_layers"] = config.layers;
  args["hidden_size"] = config.hidden;
  args["num_attention_heads"] = config.heads;
  args["seq_length"] = config.sequence;
  args["vocab_size"] = config.vocabulary;
  return args;
}

}  // namespace

dckpt::torch::ModuleStateOptions layout_of(const Model& model, const ParallelState& parallel) {
  dckpt::torch::ModuleStateOptions options;
  options.rank = parallel.rank;
  options.size = parallel.world.size();
  options.data_rank = parallel.dp_rank;
  options.prefix = "";
  options.distributed_optimizer = true;
  options.rng = false;  // there is no dropout
  options.whole_name = [&](const std::string& name) { return model.places().at(name).key; };
  options.shard = [&](const std::string& name, const at::Tensor&) -> dckpt::torch::Sharding {
    const Place& place = model.places().at(name);
    dckpt::torch::RankOffsets piece;
    if (place.layer) {  // layers are stacked along an axis that the parameter lacks
      piece.prepend_axis_num = 1;
      piece.offsets.push_back({.axis = 0, .rank = *place.layer, .count = model.config().layers});
    }
    if (place.cut_axis)
      piece.offsets.push_back({.axis = *place.cut_axis + piece.prepend_axis_num,
                               .rank = parallel.tp_rank,
                               .count = parallel.layout.tp});
    else
      piece.copy = parallel.tp_rank;
    return piece;
  };
  return options;
}

dckpt::StateDict sharded_state(const Model& model, ShardedAdam& adam, const ParallelState& parallel,
                               std::int64_t iteration) {
  dckpt::StateDict state =
      dckpt::torch::sharded_state(model, adam.optimizer(), layout_of(model, parallel));
  state["iteration"] = iteration;
  state["args"] = args(model.config());
  state["checkpoint_version"] = 3.0;  // Megatron's; determines the order of rows in linear_qkv
  return state;
}

std::int64_t resume(const dckpt::StateDict& loaded, Model& model, ShardedAdam& adam,
                    const ParallelState& parallel) {
  if (!(loaded.at("args") == args(model.config())))
    throw std::runtime_error(
        "the checkpoint is of a model with other arguments; `dckpt inspect` shows them");
  dckpt::torch::restore(model, adam.optimizer(), loaded, layout_of(model, parallel));
  return loaded.at("iteration").as_int();
}

}  // namespace gpt
