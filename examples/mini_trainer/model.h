#pragma once

#include <dckpt/dist_checkpointing.h>

#include <string>
#include <string_view>
#include <vector>

namespace mini {

/// The position of a rank, and the ranks that it works with.
struct Parallel {
  dckpt::Communicator& tensor;  ///< ranks with the other slices of the hidden layer
  dckpt::Communicator& data;    ///< ranks that train the same slice with other samples
};

/// The numbers that several ranks sum are integers, multiples of 2^-40, whose sum is the same in
/// any order. This makes losses and weights bit-identical under every layout.
using Fixed = std::int64_t;
inline Fixed to_fixed(double value) {
  return static_cast<Fixed>(value * 0x1p40);
}
inline double to_double(Fixed value) {
  return static_cast<double>(value) * 0x1p-40;
}

/// This rank's piece of a weight. Its elements are `Model::weights[first …]`, in C order.
struct Parameter {
  std::string key;
  dckpt::Shape global_shape, shape, offset;  ///< of the whole weight; of the piece, and its offset
  std::int64_t first = 0;
  bool cut() const { return shape != global_shape; }
};

/// Predicts the next byte of a text from the eight bytes before it: an embedding, a hidden layer
/// that is cut over the tensor parallel ranks, and a softmax.
struct Model {
  explicit Model(const Parallel& parallel);

  /// Adds the loss of `samples` (contexts, each followed by the byte to predict) to `loss`, and the
  /// gradients to `gradients`.
  void forward_backward(const std::vector<std::string_view>& samples, Fixed& loss);

  static constexpr std::int64_t kContext = 8, kHidden = 192;

  Parallel parallel;
  std::vector<Parameter> parameters;
  std::vector<float> weights;    ///< all parameters, one after the other
  std::vector<Fixed> gradients;  ///< in the order of the weights
};

}  // namespace mini
