#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mapping/planning/metadata.h"

namespace dckpt {

/// The part of a float8 weight that shares a scale.
enum class ScaledPart : std::uint8_t {
  kBlock,   ///< of rows and columns
  kRow,     ///< as compressed-tensors and FBGEMM have it
  kMatrix,  ///< all of a weight, or of an expert's part of it
};

/// Weights of 8 bits (float8) with a scale for each block of their last two axes:
///
///   value[…, i, j] = weight[…, i, j] × scales[…, i / rows, j / columns]
///
/// in float32, rounded to `dtype` to nearest, ties to even. The last blocks may be smaller. Where
/// a single block covers all, its scale may have any shape of one element. The scales of X.weight
/// may also be X.weight_scale, or powers of two in X.scale (float8_e8m0fnu), as in DeepSeek V4.
/// Weights of 4 bits in a published form, which need no description, are rounded likewise.
struct BlockScales {
  /// Suffix of a weight's key that makes its scales': "_scale_inv". Empty: float8 stays as it is.
  std::string suffix{};
  std::int64_t rows = 128;
  std::int64_t columns = 128;
  DType dtype = DType::kBFloat16;  ///< dtype of the values: float32, float16 or bfloat16
  /// The part with a scale. By default a block for scales with `suffix`, and whatever the shape
  /// shows for X.weight_scale.
  std::optional<ScaledPart> part{};
  /// In a form that leaves it open (packed int4): the numbers of weights of a row that may share a
  /// scale, and of bits that a weight may have. Empty: whatever the shapes show, and 4.
  std::set<std::int64_t> group_sizes{};
  std::set<std::int64_t> bits{};
  /// Returns true for a tensor that is to be left as it is, since its key belongs to no weight.
  std::function<bool(const std::string&)> is_ignored{};
};

/// A form in which weights of 4 bits are published: a byte holds two codes, the first in its lower
/// half, and consecutive codes of a row share a scale. X is the key of a weight.
struct FourBitForm {
  std::string_view name;
  DType item;                       ///< dtype of the tensor with the codes
  std::string_view codes;           ///< its key after X
  std::string_view scales;          ///< the key of the scales after X, without `ending`
  std::optional<DType> scale_type;  ///< by default, any float
  std::string_view tensor_scale{};  ///< the key of a scale of all scales after X, if there is one
  std::string_view shape{};         ///< the key of the weight's shape after X, if it is stored
  std::string_view ending{};        ///< of X, which the keys of its other tensors lack
  std::int64_t group = 0;           ///< codes that share a scale; 0: the shapes tell
  /// The codes of a group are an axis of their own, and the last two axes of the weight are
  /// swapped, as transformers expects experts in one tensor.
  bool fused_experts = false;
  std::array<float, 16> values;  ///< by code
};

/// A weight that is stored as codes and scales. Positions are those of the source's tensors.
struct QuantizedWeight {
  std::string key;
  std::size_t codes = 0;
  std::size_t scales = 0;
  std::optional<std::size_t> tensor_scale{};
  std::optional<std::size_t> shape{};
  const FourBitForm* form = nullptr;  ///< null: float8
  Shape size{};                       ///< of the values, in the order in which codes are stored
  std::int64_t rows = 1;              ///< of a block
  std::int64_t columns = 1;

  bool is_transposed() const noexcept { return form != nullptr && form->fused_experts; }
  /// Returns the box of the values whose codes are in a box of the tensor of codes.
  Box values_of(Box codes) const;
};

/// The limit of the scales of a row of blocks, which are held in memory while it is read.
inline constexpr std::uint64_t kMaxScaleBytes = std::uint64_t{16} << 20;

/// Returns the form of weights of 4 bits that a checkpoint has; null if it has none.
const FourBitForm* four_bit_form(const Metadata& metadata);

/// Returns the name of a published form of quantized weights that cannot be dequantized here, with
/// its keys: "GPTQ ('a.g_idx' beside 'a.qweight')"; empty if there is none.
std::string unreadable_form(const Metadata& metadata);

/// Returns whether a checkpoint has weights of 4 bits in a published form, float8 tensors, or
/// tensors under keys of scales.
bool is_quantized(const Metadata& metadata, const std::string& suffix);

/// Returns the weights that are stored as codes and scales, by the position of the codes. Other
/// tensors that belong to a weight have no value. Throws CheckpointError (mismatch) naming all
/// weights that lack scales, and scales that lack a weight or have another shape; (unsupported)
/// beyond kMaxScaleBytes.
std::unordered_map<std::size_t, std::optional<QuantizedWeight>> quantized_weights(
    const Metadata& metadata, const BlockScales& scales);

}  // namespace dckpt
