#include "strategies/views/quantized_weights.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

/// float4_e2m1: a sign, two bits of exponent and one of mantissa.
constexpr std::array<float, 16> kFloat4{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                        -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
/// The same without a negative zero, which ModelOpt does not have.
constexpr std::array<float, 16> kFloat4OfModelOpt{0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,
                                                  4.0F,  6.0F,  0.0F,  -0.5F, -1.0F, -1.5F,
                                                  -2.0F, -3.0F, -4.0F, -6.0F};
/// Integers from -8 on.
constexpr std::array<float, 16> kInt4{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

/// DeepSeek V4: X.scale has powers of two for X.weight, of 8 bits or of 4.
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPowersBesideWeight = ".scale";

constexpr std::array kForms{
    FourBitForm{.name = "MXFP4",
                .item = DType::kUInt8,
                .codes = "_blocks",
                .scales = "_scales",
                .scale_type = DType::kUInt8,
                .group = 32,
                .fused_experts = true,
                .values = kFloat4},
    FourBitForm{.name = "NVFP4",
                .item = DType::kUInt8,
                .codes = "",
                .scales = "_scale",
                .scale_type = DType::kFloat8E4M3FN,
                .tensor_scale = "_scale_2",
                .group = 16,
                .values = kFloat4OfModelOpt},
    FourBitForm{.name = "MXFP4",
                .item = DType::kInt8,
                .codes = "",
                .scales = kPowersBesideWeight,
                .scale_type = DType::kFloat8E8M0FNU,
                .ending = kWeight,
                .group = 32,
                .values = kFloat4},
    FourBitForm{.name = "packed int4",
                .item = DType::kInt32,
                .codes = "_packed",
                .scales = "_scale",
                .scale_type = std::nullopt,
                .shape = "_shape",
                .values = kInt4},
};

/// The scales of most float8 models, of compressed-tensors, FBGEMM and ModelOpt: X.weight_scale.
constexpr std::string_view kScaleOfWeight = "_scale";

/// A form that is known and cannot be dequantized, by two tensors of a weight X.
struct UnreadableForm {
  std::string_view name;
  std::string_view codes;       ///< the key of one after X
  std::string_view beside;      ///< the key of the other after X
  std::optional<DType> item{};  ///< dtype of the codes
};
constexpr std::array kUnreadableForms{
    UnreadableForm{"GPTQ", ".qweight", ".g_idx"},
    UnreadableForm{"AWQ", ".qweight", ".qzeros"},
    UnreadableForm{"NVFP4 of compressed-tensors", ".weight_packed", ".weight_global_scale"},
    UnreadableForm{"MXFP4 of compressed-tensors", ".weight_packed", ".weight_scale", DType::kUInt8},
    UnreadableForm{"integers of 8 bits of compressed-tensors", ".weight", ".weight_scale",
                   DType::kInt8},
    UnreadableForm{"bitsandbytes with 4 bits", ".weight", ".weight.absmax"},
    UnreadableForm{"bitsandbytes with 8 bits", ".weight", ".SCB"},
    UnreadableForm{"HQQ", ".W_q", ".scale"},
    UnreadableForm{"AQLM", ".codes", ".codebooks"},
};

bool is_float8(DType dtype) {
  return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E4M3FNUZ ||
         dtype == DType::kFloat8E5M2 || dtype == DType::kFloat8E5M2FNUZ;
}

std::int64_t blocks_of(std::int64_t extent, std::int64_t block) {
  return extent / block + (extent % block != 0 ? 1 : 0);
}

std::int64_t codes_in(DType item) {
  return static_cast<std::int64_t>(2 * item_size(item));
}

/// Writes "16 or 32".
std::string or_list(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers)
    text += (text.empty() ? "" : " or ") + std::to_string(number);
  return text;
}

/// Returns the key X of a weight whose codes have the key `key`; empty for other tensors.
std::string weight_of(const FourBitForm& form, const std::string& key, DType dtype) {
  if (dtype != form.item || !key.ends_with(form.codes)) return {};
  std::string weight = key.substr(0, key.size() - form.codes.size());
  if (!weight.ends_with(form.ending)) weight.clear();
  return weight;
}

/// Returns the key of another tensor of the weight X, which ends with `ending` there.
std::string beside(const std::string& weight, std::string_view ending, std::string_view suffix) {
  return weight.substr(0, weight.size() - ending.size()) + std::string(suffix);
}

class WeightFinder {
 public:
  WeightFinder(const Metadata& metadata, const BlockScales& scales)
      : stored_(metadata.tensors), scales_(scales) {
    for (std::size_t i = 0; i < stored_.size(); ++i) positions_.emplace(stored_[i].key, i);
  }

  std::unordered_map<std::size_t, std::optional<QuantizedWeight>> find() {
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      for (const FourBitForm& form : kForms) find_four_bits(form, i);
    }
    problems_.raise_if_any(ErrorCode::kMismatch, "the weights of 4 bits cannot be dequantized:");
    if (scales_.suffix.empty()) return std::move(found_);
    for (std::size_t i = 0; i < stored_.size(); ++i) {
      if (!found_.contains(i)) find_float8(i);
    }
    problems_.raise_if_any(
        ErrorCode::kMismatch,
        str_format("cannot dequantize the weights. The map expects the scales of a weight X under "
                   "X{}, one for each {} × {} block, but:",
                   scales_.suffix, scales_.rows, scales_.columns));
    return std::move(found_);
  }

 private:
  std::optional<std::size_t> position(const std::string& key) const {
    const auto found = positions_.find(key);
    return found == positions_.end() ? std::nullopt : std::optional(found->second);
  }

  /// Returns the powers of two beside a weight, as DeepSeek V4 has them.
  std::optional<std::size_t> powers_beside(const std::string& weight) const {
    if (!weight.ends_with(kWeight)) return std::nullopt;
    const auto found = position(beside(weight, kWeight, kPowersBesideWeight));
    const bool fits = found && stored_[*found].properties.dtype == DType::kFloat8E8M0FNU;
    return fits ? found : std::nullopt;
  }

  /// Finds a tensor that belongs to a weight, unless its suffix is empty, or reports its absence.
  std::optional<std::size_t> part(const QuantizedWeight& weight, std::string_view suffix) {
    if (suffix.empty()) return std::nullopt;
    const std::string key = beside(weight.key, weight.form->ending, suffix);
    const auto found = position(key);
    if (!found)
      problems_.add(str_format("{} holds {} weights, but {} is missing",
                               quote(stored_[weight.codes].key), weight.form->name, quote(key)));
    return found;
  }

  bool is_ignored(const std::string& key) const {
    return scales_.is_ignored && scales_.is_ignored(key);
  }

  void find_four_bits(const FourBitForm& form, std::size_t codes) {
    if (is_ignored(stored_[codes].key)) return;
    const std::string key = weight_of(form, stored_[codes].key, stored_[codes].properties.dtype);
    if (key.empty()) return;
    if (!form.ending.empty() && !powers_beside(key)) return;
    if (!form.tensor_scale.empty() && !position(key + std::string(form.tensor_scale))) return;
    QuantizedWeight weight{.key = key, .codes = codes, .form = &form};
    const auto scales = part(weight, form.scales);
    weight.tensor_scale = part(weight, form.tensor_scale);
    weight.shape = part(weight, form.shape);
    if (!scales) return;
    weight.scales = *scales;
    if (!form.codes.empty() && position(key))
      problems_.add(str_format("{} and {} are both there", quote(key), quote(stored_[codes].key)));
    check_four_bits(weight);
    for (const auto& part : {std::optional(weight.scales), weight.tensor_scale, weight.shape}) {
      if (part) found_.emplace(*part, std::nullopt);
    }
    found_.insert_or_assign(codes, std::move(weight));
  }

  /// Sets the shape and the blocks of a weight, or reports that its tensors do not fit.
  void check_four_bits(QuantizedWeight& weight) {
    const FourBitForm& form = *weight.form;
    const TensorStorageMetadata& codes = stored_[weight.codes];
    const TensorStorageMetadata& scales = stored_[weight.scales];
    const DType found = scales.properties.dtype;
    if (form.scale_type ? found != *form.scale_type : !can_cast(found, DType::kFloat32))
      return problems_.add(str_format("{} is {}, expected {}", quote(scales.key), to_string(found),
                                      form.scale_type ? to_string(*form.scale_type) : "a float"));
    if (weight.tensor_scale) check_tensor_scale(stored_[*weight.tensor_scale]);
    if (codes.flattened_shape || scales.flattened_shape)
      return problems_.add(quote(codes.key) +
                           " is stored flattened; convert it without a map once");
    Shape size = codes.global_shape();
    const Shape& groups = scales.global_shape();
    bool fits = size.size() >= (form.fused_experts ? 4U : 2U) && size.back() > 0;
    std::optional<std::int64_t> columns = fits ? size.back() : 0;
    columns = checked_mul(*columns, codes_in(form.item));
    if (fits && form.fused_experts) {
      size.pop_back();
      columns = columns ? checked_mul(*columns, size.back()) : columns;
    }
    fits = fits && columns && groups.size() == size.size() && groups.back() > 0 &&
           std::equal(size.begin(), size.end() - 1, groups.begin()) &&
           *columns % groups.back() == 0 && checked_rows(size, *columns);
    if (fits) weight.columns = *columns / groups.back();
    if (form.group == 0 && !scales_.bits.empty() && !scales_.bits.contains(4))
      return problems_.add(str_format("{} holds weights of {} bits (num_bits of config.json)",
                                      quote(codes.key), or_list(scales_.bits)));
    const std::set<std::int64_t> groups_of =
        form.group != 0 ? std::set{form.group} : scales_.group_sizes;
    if (!fits || (!groups_of.empty() && !groups_of.contains(weight.columns)))
      return problems_.add(str_format(
          "{} has the shape {}, but {} has {}; expected a scale for each {}", quote(scales.key),
          to_string(groups), quote(codes.key), to_string(codes.global_shape()),
          groups_of.empty() ? std::string("group of weights of a row, all of one size")
                            : str_format("{} weights of a row{}", or_list(groups_of),
                                         form.group == 0 ? " (group_size of config.json)" : "")));
    size.back() = *columns;
    weight.size = size;
    for (std::size_t i = 0; form.fused_experts && i < codes.chunks.size(); ++i) {
      if (codes.chunks.sizes(i).back() != codes.size.back())
        return problems_.add(quote(codes.key) + " is cut inside groups of weights");
    }
    check_size(scales);
  }

  /// Returns whether the number of values of a weight fits in int64.
  static bool checked_rows(Shape size, std::int64_t columns) {
    size.back() = columns;
    return checked_numel(size).has_value();
  }

  void check_tensor_scale(const TensorStorageMetadata& scale) {
    if (numel(scale.global_shape()) != 1 || !can_cast(scale.properties.dtype, DType::kFloat32))
      problems_.add(str_format("{} has the shape {} of {}, expected one float", quote(scale.key),
                               to_string(scale.global_shape()), to_string(scale.properties.dtype)));
  }

  void find_float8(std::size_t position_of_key) {
    const std::string& key = stored_[position_of_key].key;
    const DType dtype = stored_[position_of_key].properties.dtype;
    if (is_ignored(key)) return;
    if (key.ends_with(scales_.suffix) && key.size() > scales_.suffix.size()) {
      const std::string weight = key.substr(0, key.size() - scales_.suffix.size());
      if (!position(weight))
        problems_.add(str_format("{}: there is no {} that it scales", quote(key), quote(weight)));
      found_.emplace(position_of_key, std::nullopt);
      return;
    }
    auto scales = position(key + scales_.suffix);
    const bool is_of_map = scales.has_value();
    if (!scales && is_float8(dtype)) scales = powers_beside(key);
    if (!scales && is_float8(dtype)) scales = position(key + std::string(kScaleOfWeight));
    if (scales) {
      QuantizedWeight weight{.key = key,
                             .codes = position_of_key,
                             .scales = *scales,
                             .size = stored_[position_of_key].global_shape()};
      check_float8(weight, is_of_map);
      found_.insert_or_assign(*scales, std::nullopt);
      found_.insert_or_assign(position_of_key, std::move(weight));
    } else if (is_float8(dtype)) {
      problems_.add(str_format("{} is {}, but its scales {}{} are missing", quote(key),
                               to_string(dtype), quote(key + scales_.suffix),
                               scales_.suffix == kScaleOfWeight
                                   ? std::string()
                                   : " or " + quote(key + std::string(kScaleOfWeight))));
    }
  }

  /// Sets the blocks of a weight, or reports that its scales do not fit.
  void check_float8(QuantizedWeight& weight, bool is_of_map) {
    const TensorStorageMetadata& codes = stored_[weight.codes];
    const TensorStorageMetadata& scales = stored_[weight.scales];
    if (!is_float8(codes.properties.dtype))
      return problems_.add(str_format("{} has scales, but is {}, not float8", quote(codes.key),
                                      to_string(codes.properties.dtype)));
    if (scales.properties.dtype != DType::kFloat8E8M0FNU &&
        !can_cast(scales.properties.dtype, DType::kFloat32))
      return problems_.add(str_format("{} is {}, expected float32 or another float",
                                      quote(scales.key), to_string(scales.properties.dtype)));
    if (codes.flattened_shape)
      return problems_.add(quote(codes.key) +
                           " is stored flattened; convert it without a map once");
    std::vector<ScaledPart> parts{ScaledPart::kBlock, ScaledPart::kRow, ScaledPart::kMatrix};
    if (scales_.part) parts = {*scales_.part};
    if (!scales_.part && is_of_map) parts = {ScaledPart::kBlock};
    std::string expected;
    for (const ScaledPart part : parts) {
      std::string shape;
      if (weight.size.size() >= 2) {
        set_blocks(weight, part);
        const Shape wanted = shape_of_scales(weight);
        if (fit(scales.global_shape(), wanted, part)) return check_size(scales);
        shape = ": " + to_string(wanted);
      }
      expected += str_format("{}{}{}", expected.empty() ? "" : ", or for ",
                             part == ScaledPart::kBlock ? str_format("each block of {} × {}",
                                                                     scales_.rows, scales_.columns)
                             : part == ScaledPart::kRow ? std::string("each row")
                                                        : std::string("the whole"),
                             shape);
    }
    problems_.add(str_format("{} has the shape {}, but {} has {}; expected a scale for {}",
                             quote(scales.key), to_string(scales.global_shape()), quote(codes.key),
                             to_string(weight.size), expected));
  }

  void set_blocks(QuantizedWeight& weight, ScaledPart part) const {
    const Shape& size = weight.size;
    weight.rows = part == ScaledPart::kBlock ? scales_.rows
                  : part == ScaledPart::kRow ? 1
                                             : std::max<std::int64_t>(*(size.end() - 2), 1);
    weight.columns =
        part == ScaledPart::kBlock ? scales_.columns : std::max<std::int64_t>(size.back(), 1);
  }

  static Shape shape_of_scales(const QuantizedWeight& weight) {
    Shape shape = weight.size;
    *(shape.end() - 2) = blocks_of(*(shape.end() - 2), weight.rows);
    shape.back() = blocks_of(shape.back(), weight.columns);
    return shape;
  }

  /// Returns whether scales have the wanted shape; last extents of 1 may be missing.
  static bool fit(Shape found, const Shape& wanted, ScaledPart part) {
    if (numel(found) == 1 && (numel(wanted) == 1 || part == ScaledPart::kMatrix)) return true;
    if (found.size() < wanted.size() && part != ScaledPart::kBlock) found.resize(wanted.size(), 1);
    return found == wanted;
  }

  static void check_size(const TensorStorageMetadata& scales) {
    const Shape& shape = scales.global_shape();
    if (shape.empty() || static_cast<std::uint64_t>(shape.back()) <= kMaxScaleBytes / sizeof(float))
      return;
    throw_error(ErrorCode::kUnsupported, {.key = scales.key},
                "a row of weights has more scales than {} hold", human_bytes(kMaxScaleBytes));
  }

  const std::vector<TensorStorageMetadata>& stored_;
  const BlockScales& scales_;
  std::unordered_map<std::string_view, std::size_t> positions_;
  std::unordered_map<std::size_t, std::optional<QuantizedWeight>> found_;
  ProblemList problems_;
};

}  // namespace

Box QuantizedWeight::values_of(Box box) const {
  if (form == nullptr) return box;
  const std::int64_t per_item = codes_in(form->item);
  box.offsets.back() *= per_item;
  box.sizes.back() *= per_item;
  if (!form->fused_experts) return box;
  const std::int64_t group = box.sizes.back();
  box.offsets.pop_back();
  box.sizes.pop_back();
  box.offsets.back() *= group;
  box.sizes.back() *= group;
  return box;
}

const FourBitForm* four_bit_form(const Metadata& metadata) {
  std::unordered_set<std::string_view> powers;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (tensor.properties.dtype == DType::kFloat8E8M0FNU) powers.insert(tensor.key);
  }
  const auto shows = [&](const TensorStorageMetadata& tensor, const FourBitForm& form) {
    if (!form.tensor_scale.empty()) return tensor.key.ends_with(form.tensor_scale);
    const std::string weight = weight_of(form, tensor.key, tensor.properties.dtype);
    return !weight.empty() &&
           (form.ending.empty() || powers.contains(beside(weight, form.ending, form.scales)));
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (const FourBitForm& form : kForms) {
      if (shows(tensor, form)) return &form;
    }
  }
  return nullptr;
}

std::string unreadable_form(const Metadata& metadata) {
  std::unordered_set<std::string_view> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.insert(tensor.key);
  for (const UnreadableForm& form : kUnreadableForms) {
    for (const TensorStorageMetadata& tensor : metadata.tensors) {
      if (!tensor.key.ends_with(form.codes) || (form.item && tensor.properties.dtype != *form.item))
        continue;
      const std::string other = beside(tensor.key, form.codes, form.beside);
      if (keys.contains(other))
        return str_format("{} ({} beside {})", form.name, quote(other), quote(tensor.key));
    }
  }
  return {};
}

bool is_quantized(const Metadata& metadata, const std::string& suffix) {
  return four_bit_form(metadata) != nullptr ||
         (!suffix.empty() &&
          std::ranges::any_of(metadata.tensors, [&](const TensorStorageMetadata& tensor) {
            return tensor.key.ends_with(suffix) || is_float8(tensor.properties.dtype);
          }));
}

std::unordered_map<std::size_t, std::optional<QuantizedWeight>> quantized_weights(
    const Metadata& metadata, const BlockScales& scales) {
  return WeightFinder(metadata, scales).find();
}

}  // namespace dckpt
