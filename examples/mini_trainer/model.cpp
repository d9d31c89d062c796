#include "model.h"

#include <algorithm>
#include <cmath>

namespace mini {
namespace {

constexpr std::int64_t kVocabulary = 128, kEmbedding = 16;
constexpr std::int64_t kInputs = Model::kContext * kEmbedding;
enum { kEmbed, kUp, kUpBias, kDown, kDownBias };  // the order of Model::parameters

// Returns a random number that depends on the element's place in the whole model, not on the
// layout.
float initial(std::size_t parameter, std::int64_t element) {
  std::uint64_t x = (std::uint64_t{parameter} << 32) + static_cast<std::uint64_t>(element) + 1;
  for (int round = 0; round < 3; ++round) x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15;
  return 0.2F * (static_cast<float>(x >> 40) * 0x1p-24F - 0.5F);
}

std::size_t row(std::string_view sample, std::int64_t position) {  // row of the embedding
  return static_cast<std::size_t>(sample[static_cast<std::size_t>(position)]) % kVocabulary;
}

}  // namespace

Model::Model(const Parallel& with) : parallel(with) {
  const std::int64_t rank = parallel.tensor.rank(), hidden = kHidden / parallel.tensor.size();
  parameters = {
      {"embedding.weight", {kVocabulary, kEmbedding}, {kVocabulary, kEmbedding}, {0, 0}},
      {"mlp.up.weight", {kHidden, kInputs}, {hidden, kInputs}, {rank * hidden, 0}},
      {"mlp.up.bias", {kHidden}, {hidden}, {rank * hidden}},
      {"mlp.down.weight", {kVocabulary, kHidden}, {kVocabulary, hidden}, {0, rank * hidden}},
      {"mlp.down.bias", {kVocabulary}, {kVocabulary}, {0}}};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    p.first = static_cast<std::int64_t>(weights.size());
    const std::int64_t columns = p.shape.back(), rows = dckpt::numel(p.shape) / columns;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t whole_row = r + (p.shape.size() == 2 ? p.offset[0] : 0);
        weights.push_back(initial(i, whole_row * p.global_shape.back() + c + p.offset.back()));
      }
    }
  }
  gradients.resize(weights.size());
}

void Model::forward_backward(const std::vector<std::string_view>& samples, Fixed& loss) {
  const auto hidden = kHidden / parallel.tensor.size();
  const auto n = static_cast<std::int64_t>(samples.size());
  const auto weight = [&](int which) { return &weights[parameters[which].first]; };
  const auto gradient = [&](int which) { return &gradients[parameters[which].first]; };
  std::vector<double> inputs, activations;
  std::vector<Fixed> logits;

  for (const std::string_view sample : samples) {
    for (std::int64_t c = 0; c < kContext; ++c) {
      const float* embedded = weight(kEmbed) + row(sample, c) * kEmbedding;
      inputs.insert(inputs.end(), embedded, embedded + kEmbedding);
    }
    const double* x = &inputs[inputs.size() - kInputs];
    for (std::int64_t j = 0; j < hidden; ++j) {
      double sum = weight(kUpBias)[j];
      for (std::int64_t i = 0; i < kInputs; ++i) sum += weight(kUp)[j * kInputs + i] * x[i];
      activations.push_back(std::max(sum, 0.0));
    }
    const double* h = &activations[activations.size() - hidden];
    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      Fixed sum = 0;
      for (std::int64_t j = 0; j < hidden; ++j)
        sum += to_fixed(weight(kDown)[v * hidden + j] * h[j]);
      logits.push_back(sum);
    }
  }
  logits = parallel.tensor.all_reduce(logits, dckpt::ReduceOp::kSum);

  std::vector<Fixed> input_gradients(inputs.size());
  for (std::int64_t s = 0; s < n; ++s) {
    const double *x = &inputs[s * kInputs], *h = &activations[s * hidden];
    std::vector<double> slope(kVocabulary), hidden_slope(hidden);  // of the loss
    double sum = 0;
    for (std::int64_t v = 0; v < kVocabulary; ++v)
      sum += slope[v] = std::exp(to_double(logits[s * kVocabulary + v]) + weight(kDownBias)[v]);
    for (double& value : slope) value /= sum;
    const std::size_t next = row(samples[s], kContext);
    loss += to_fixed(-std::log(slope[next]));
    slope[next] -= 1;

    for (std::int64_t v = 0; v < kVocabulary; ++v) {
      gradient(kDownBias)[v] += to_fixed(slope[v]);
      for (std::int64_t j = 0; j < hidden; ++j) {
        gradient(kDown)[v * hidden + j] += to_fixed(slope[v] * h[j]);
        hidden_slope[j] += slope[v] * weight(kDown)[v * hidden + j];
      }
    }
    for (std::int64_t j = 0; j < hidden; ++j) {
      if (h[j] == 0) continue;
      gradient(kUpBias)[j] += to_fixed(hidden_slope[j]);
      for (std::int64_t i = 0; i < kInputs; ++i) {
        gradient(kUp)[j * kInputs + i] += to_fixed(hidden_slope[j] * x[i]);
        input_gradients[s * kInputs + i] +=
            to_fixed(hidden_slope[j] * weight(kUp)[j * kInputs + i]);
      }
    }
  }
  input_gradients = parallel.tensor.all_reduce(input_gradients, dckpt::ReduceOp::kSum);
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t i = 0; i < kInputs; ++i) {
      Fixed* embedded = gradient(kEmbed) + row(samples[s], i / kEmbedding) * kEmbedding;
      embedded[i % kEmbedding] += input_gradients[s * kInputs + i];
    }
  }
}

}  // namespace mini
