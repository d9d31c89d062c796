#pragma once

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_state.h"

namespace gpt {

struct ModelConfig {
  std::int64_t layers = 4, hidden = 64, heads = 4, sequence = 64;
  std::int64_t vocabulary = 256;  ///< one per byte value
  std::int64_t seed = 1234;
};

/// The piece of a whole weight that a parameter is.
struct Place {
  std::optional<std::int64_t> layer{};  ///< counted over all stages
  /// The axis along which tensor parallel ranks have equal pieces; without one, all hold the same.
  std::optional<std::int64_t> cut_axis{};
  std::string key{};  ///< key of the whole weight, the same for all layers:
                      ///< "decoder.layers.mlp.linear_fc1.weight"
};

/// This rank's part of a GPT: a run of the layers (pipeline parallelism), and some rows or columns
/// of each matrix (tensor parallelism). Weights are drawn by key and layer, so that the model
/// depends on neither layout nor device.
class Model : public torch::nn::Module {
 public:
  /// Throws std::invalid_argument if layers, heads or vocabulary cannot be cut evenly. `parallel`
  /// must outlive the model.
  Model(const ModelConfig& config, const ParallelState& parallel, c10::Device device);

  /// Takes bytes [batch, sequence] on the first stage, activations [batch, sequence, hidden] on
  /// others. Returns activations, or on the last stage this rank's piece of the logits [batch,
  /// sequence, vocabulary / TP].
  at::Tensor forward(const at::Tensor& input) const;
  /// Returns the mean cross entropy of the last stage's output.
  at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) const;

  const ModelConfig& config() const { return config_; }
  c10::Device device() const { return device_; }
  /// Returns the places by the parameter's name in this module:
  /// "decoder.layers.3.mlp.linear_fc1.weight".
  const std::map<std::string, Place>& places() const { return places_; }

 private:
  struct Affine {
    at::Tensor weight, bias;
  };
  struct Layer {
    Affine input_layernorm, linear_qkv, linear_proj, pre_mlp_layernorm, linear_fc1, linear_fc2;
  };
  at::Tensor add(const std::string& key, at::IntArrayRef whole_shape, double deviation,
                 Place place);
  at::Tensor add_constant(const std::string& key, std::int64_t whole_length, double value,
                          Place place);
  at::Tensor add_parameter(const std::string& key, Place place, at::Tensor tensor);
  Affine add_norm(const std::string& name, Place place);
  Layer add_layer(std::int64_t number);
  at::Tensor attention(const Layer& layer, const at::Tensor& input) const;
  at::Tensor mlp(const Layer& layer, const at::Tensor& input) const;
  at::Tensor norm(const Affine& norm, const at::Tensor& input) const;

  ModelConfig config_;
  const ParallelState& parallel_;
  c10::Device device_;
  std::map<std::string, Place> places_;
  at::Tensor word_embeddings_, position_embeddings_, output_layer_;
  std::vector<Layer> layers_;
  Affine final_layernorm_;
};

}  // namespace gpt
