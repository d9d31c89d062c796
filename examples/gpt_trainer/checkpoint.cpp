#include "checkpoint.h"

#include <stdexcept>

namespace gpt {
namespace {

/// Which piece of the whole tensor a rank has of a parameter. Layers are stacked: they are the
/// places along a leading axis that the local tensor lacks.
struct Sharding {
  std::vector<dckpt::RankOffset> offsets;
  dckpt::ShardedTensorOptions options;
};

Sharding sharding(const Parameter& parameter, const ModelConfig& config,
                  const ParallelState& parallel, int data_replica) {
  Sharding result;
  if (parameter.layer) {
    result.options.prepend_axis_num = 1;
    result.offsets.push_back({.axis = 0, .rank = *parameter.layer, .count = config.layers});
  }
  if (parameter.cut_axis) {
    result.offsets.push_back({.axis = *parameter.cut_axis + result.options.prepend_axis_num,
                              .rank = parallel.tp_rank,
                              .count = parallel.layout.tp});
  }
  result.options.replica_id = {0, parameter.cut_axis ? 0 : parallel.tp_rank, data_replica};
  return result;
}

std::string name_in_state(const Parameter& parameter) {
  return parameter.key + (parameter.layer ? "." + std::to_string(*parameter.layer) : "");
}

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

dckpt::StateDict sharded_state(const Model& model, const ShardedAdam& adam,
                               const ParallelState& parallel) {
  dckpt::StateDict state;
  for (const Parameter& parameter : model.parameters()) {
    const Sharding place = sharding(parameter, model.config(), parallel, parallel.dp_rank);
    state["model"][name_in_state(parameter)] = dckpt::ShardedTensor::from_rank_offsets(
        parameter.key, dckpt::from_torch(parameter.tensor), place.offsets, place.options);
  }
  // Each element of the optimizer's state is on one data parallel rank only, in the range of the
  // flattened piece which that rank owns.
  const std::pair<std::string, at::Tensor> kinds[] = {{"fp32_param", adam.main_params()},
                                                      {"exp_avg", adam.exp_avg()},
                                                      {"exp_avg_sq", adam.exp_avg_sq()}};
  for (const ShardedAdam::Fragment& fragment : adam.fragments()) {
    const Parameter& parameter = fragment.parameter;
    const Sharding place = sharding(parameter, model.config(), parallel, 0);
    const dckpt::Shape local_shape(parameter.tensor.sizes().begin(),
                                   parameter.tensor.sizes().end());
    const dckpt::FlattenedRange range{fragment.begin, fragment.end};
    for (const auto& [kind, flat] : kinds) {
      const at::Tensor elements = flat.narrow(0, fragment.offset, range.end - range.begin);
      state["optimizer"]["state"][kind][name_in_state(parameter)] =
          dckpt::ShardedTensor::from_rank_offsets_flat(
              "optimizer.state." + kind + "." + parameter.key, dckpt::from_torch(elements),
              local_shape, place.offsets, range, place.options);
    }
  }
  return state;
}

dckpt::StateDict state_to_save(const Model& model, const ShardedAdam& adam,
                               const ParallelState& parallel, std::int64_t iteration) {
  dckpt::StateDict state = sharded_state(model, adam, parallel);
  state["optimizer"]["step"] = adam.steps();
  state["iteration"] = iteration;
  state["args"] = args(model.config());
  state["checkpoint_version"] = 3.0;  // of Megatron: the order of rows in linear_qkv
  return state;
}

std::int64_t resume(const dckpt::StateDict& loaded, const Model& model, ShardedAdam& adam) {
  if (!(loaded.at("args") == args(model.config())))
    throw std::runtime_error(
        "the checkpoint is of a model with other arguments; `dckpt inspect` shows them");
  adam.set_steps(loaded.at("optimizer").at("step").as_int());
  return loaded.at("iteration").as_int();
}

}  // namespace gpt
