#include "model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <stdexcept>

#include "tensor_parallel.h"

namespace gpt {
namespace {

constexpr double kDeviation = 0.02;

void check_divisible(const char* what, std::int64_t count, int ways) {
  if (count % ways != 0)
    throw std::invalid_argument(std::to_string(count) + " " + what + " cannot be cut into " +
                                std::to_string(ways) + " equal parts");
}

/// FNV-1a
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return value;
}

}  // namespace

Model::Model(const ModelConfig& config, const ParallelState& parallel, c10::Device device)
    : config_(config), parallel_(parallel), device_(device) {
  check_divisible("layers", config.layers, parallel.layout.pp);
  check_divisible("attention heads", config.heads, parallel.layout.tp);
  check_divisible("words", config.vocabulary, parallel.layout.tp);
  check_divisible("hidden units", config.hidden, static_cast<int>(config.heads));
  if (parallel.is_first_stage()) {
    word_embeddings_ = add("embedding.word_embeddings.weight", {config.vocabulary, config.hidden},
                           kDeviation, {.cut_axis = 0});
    position_embeddings_ = add("embedding.position_embeddings.weight",
                               {config.sequence, config.hidden}, kDeviation, {});
  }
  const std::int64_t count = config.layers / parallel.layout.pp;
  for (std::int64_t number = parallel.pp_rank * count; number < (parallel.pp_rank + 1) * count;
       ++number)
    layers_.push_back(add_layer(number));
  if (parallel.is_last_stage()) {
    final_layernorm_ = add_norm("decoder.final_layernorm", {});
    output_layer_ =
        add("output_layer.weight", {config.vocabulary, config.hidden}, kDeviation, {.cut_axis = 0});
  }
}

Model::Layer Model::add_layer(std::int64_t number) {
  const std::string prefix = "decoder.layers.";
  const std::int64_t hidden = config_.hidden;
  const Place whole{.layer = number}, rows{.layer = number, .cut_axis = 0},
      columns{.layer = number, .cut_axis = 1};
  const double output_deviation = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
  Layer layer;
  layer.input_layernorm = add_norm(prefix + "input_layernorm", whole);
  layer.linear_qkv = {
      add(prefix + "self_attention.linear_qkv.weight", {3 * hidden, hidden}, kDeviation, rows),
      add_constant(prefix + "self_attention.linear_qkv.bias", 3 * hidden, 0, rows)};
  layer.linear_proj = {add(prefix + "self_attention.linear_proj.weight", {hidden, hidden},
                           output_deviation, columns),
                       add_constant(prefix + "self_attention.linear_proj.bias", hidden, 0, whole)};
  layer.pre_mlp_layernorm = add_norm(prefix + "pre_mlp_layernorm", whole);
  layer.linear_fc1 = {add(prefix + "mlp.linear_fc1.weight", {4 * hidden, hidden}, kDeviation, rows),
                      add_constant(prefix + "mlp.linear_fc1.bias", 4 * hidden, 0, rows)};
  layer.linear_fc2 = {
      add(prefix + "mlp.linear_fc2.weight", {hidden, 4 * hidden}, output_deviation, columns),
      add_constant(prefix + "mlp.linear_fc2.bias", hidden, 0, whole)};
  return layer;
}

Model::Affine Model::add_norm(const std::string& name, Place place) {
  return {add_constant(name + ".weight", config_.hidden, 1, place),
          add_constant(name + ".bias", config_.hidden, 0, place)};
}

at::Tensor Model::add_constant(const std::string& key, std::int64_t whole_length, double value,
                               Place place) {
  const std::int64_t length = place.cut_axis ? whole_length / parallel_.layout.tp : whole_length;
  return add_parameter(key, place, at::full({length}, value, device_));
}

at::Tensor Model::add(const std::string& key, at::IntArrayRef whole_shape, double deviation,
                      Place place) {
  const std::uint64_t seed = static_cast<std::uint64_t>(config_.seed) +
                             hash(key + "/" + std::to_string(place.layer.value_or(-1)));
  at::Tensor tensor =
      at::randn(whole_shape, at::make_generator<at::CPUGeneratorImpl>(seed)) * deviation;
  if (place.cut_axis)
    tensor = tensor
                 .chunk(parallel_.layout.tp,
                        *place.cut_axis)[static_cast<std::size_t>(parallel_.tp_rank)]
                 .contiguous();
  return add_parameter(key, place, tensor.to(device_));
}

/// Registers the tensor under the key, with the number of its layer, as modules in modules.
at::Tensor Model::add_parameter(const std::string& key, Place place, at::Tensor tensor) {
  const std::string layers = "decoder.layers.";
  const std::string name =
      place.layer ? layers + std::to_string(*place.layer) + "." + key.substr(layers.size()) : key;
  place.key = key;
  places_.emplace(name, std::move(place));
  torch::nn::Module* module = this;
  std::size_t begin = 0;
  for (std::size_t dot; (dot = name.find('.', begin)) != std::string::npos; begin = dot + 1) {
    const std::string child = name.substr(begin, dot - begin);
    const auto children = module->named_children();
    module = children.contains(child)
                 ? children[child].get()
                 : module->register_module(child, std::make_shared<torch::nn::Module>()).get();
  }
  return module->register_parameter(name.substr(begin), std::move(tensor));
}

at::Tensor Model::forward(const at::Tensor& input) const {
  at::Tensor hidden =
      parallel_.is_first_stage()
          ? vocabulary_embedding(input, word_embeddings_, parallel_.tensor) + position_embeddings_
          : input;
  for (const Layer& layer : layers_) {
    hidden = hidden + attention(layer, norm(layer.input_layernorm, hidden));
    hidden = hidden + mlp(layer, norm(layer.pre_mlp_layernorm, hidden));
  }
  if (!parallel_.is_last_stage()) return hidden;
  return at::linear(copy_to(norm(final_layernorm_, hidden), parallel_.tensor), output_layer_);
}

at::Tensor Model::loss(const at::Tensor& logits, const at::Tensor& targets) const {
  return vocabulary_cross_entropy(logits, targets, parallel_.tensor);
}

at::Tensor Model::norm(const Affine& norm, const at::Tensor& input) const {
  return at::layer_norm(input, {config_.hidden}, norm.weight, norm.bias);
}

at::Tensor Model::attention(const Layer& layer, const at::Tensor& input) const {
  // Rows of linear_qkv are ordered head by head, each with its query, key and value, so a rank's
  // run of rows consists of whole heads.
  const std::int64_t heads = config_.heads / parallel_.layout.tp,
                     width = config_.hidden / config_.heads;
  const at::Tensor qkv =
      at::linear(copy_to(input, parallel_.tensor), layer.linear_qkv.weight, layer.linear_qkv.bias);
  const std::vector<at::Tensor> parts =
      qkv.view({input.size(0), input.size(1), heads, 3 * width}).transpose(1, 2).chunk(3, -1);
  const at::Tensor seen = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  const at::Tensor joined =
      seen.transpose(1, 2).reshape({input.size(0), input.size(1), heads * width});
  return reduce_from(at::linear(joined, layer.linear_proj.weight), parallel_.tensor) +
         layer.linear_proj.bias;
}

at::Tensor Model::mlp(const Layer& layer, const at::Tensor& input) const {
  const at::Tensor inner = at::gelu(
      at::linear(copy_to(input, parallel_.tensor), layer.linear_fc1.weight, layer.linear_fc1.bias));
  return reduce_from(at::linear(inner, layer.linear_fc2.weight), parallel_.tensor) +
         layer.linear_fc2.bias;
}

}  // namespace gpt
