#include "migration/maps/findings/norm_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/geometry/element_stats.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::array kNames{kLayerNorm1p, "layernorm_zero_centered_gamma"};
/// Norms are small; a larger tensor under such a name is none.
constexpr std::int64_t kMostElements = std::int64_t{1} << 24;
/// Means of random weights are seldom further from 0, in standard errors. Factors of trained models
/// hardly ever have a negative mean; without the 1, those of the many factors below 1 do.
constexpr double kClearly = 4;
/// Factors that are all as small as this, and negative as often as this, are none either: the norm
/// would turn off what it scales, and turn its signs.
constexpr double kSmall = 0.5;
constexpr double kManyNegative = 0.25;

bool is_norm(const MapRow& row) {
  return std::ranges::any_of(std::array{"*norm.weight", "*layer_norm_weight"},
                             [&](const char* glob) { return glob_match(glob, row.megatron); });
}

bool is_name(const std::string& name) {
  return std::ranges::find(kNames, name) != kNames.end();
}

/// Returns whether norms lack the 1 on both sides; empty if the map does not say so.
std::optional<bool> lack_1(const KeyMap& map, const MapNumbers* numbers) {
  for (const MapRefusal& refusal : map.refuse) {
    const MapNumber* const number = map.find_number(refusal.only_if);
    if (number != nullptr && is_name(number->args_not)) return true;
  }
  const MapNumber* const number = map.find_number(kLayerNorm1p);
  if (number == nullptr) return false;
  if (number->args.empty()) return std::nullopt;
  return numbers != nullptr && numbers->is_true(kLayerNorm1p);
}

/// The norms of one kind in a model.
struct Norms {
  ElementStats all{};
  std::size_t count = 0;
  std::size_t around_0 = 0;  ///< those with a mean clearly below 0, or small weights of both signs
  double lowest = 0;         ///< the lowest mean
  std::string key{};         ///< the tensor that has it

  bool are_all(double value) const { return count > 0 && all.min == value && all.max == value; }

  /// `below`: number of negative weights.
  void add(const std::string& tensor, const ElementStats& norm, std::size_t below) {
    if (norm.finite() < norm.count) return;
    const auto weights = static_cast<double>(norm.count);
    const double error = norm.deviation() / std::sqrt(weights);
    const bool has_both_signs = static_cast<double>(below) > kManyNegative * weights;
    if (norm.mean < -kClearly * error || (has_both_signs && norm.abs_max() < kSmall)) ++around_0;
    if (count++ == 0 || norm.mean < lowest) {
      lowest = norm.mean;
      key = tensor;
    }
    all.merge(norm);
  }
};

/// Reads tensors with a norm in each row of their last axis.
Norms read_norms(const CheckpointReader& reader, const std::vector<std::string>& keys) {
  const std::set<std::string> wanted(keys.begin(), keys.end());
  Norms norms;
  const auto& tensors = reader.metadata().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Shape& shape = tensors[i].global_shape();
    const DType dtype = tensors[i].properties.dtype;
    const std::int64_t elements = numel(shape);
    if (!wanted.contains(tensors[i].key) || shape.empty() || elements == 0 ||
        elements > kMostElements || !can_cast(dtype, DType::kFloat32))
      continue;
    const Tensor values = read_box(reader, i, whole(shape));
    const auto width = static_cast<std::size_t>(shape.back());
    for (std::size_t at = 0; at < static_cast<std::size_t>(elements); at += width) {
      const std::byte* const weights = values.data() + at * item_size(dtype);
      ElementStats norm;
      add_elements(norm, dtype, weights, width);
      std::vector<float> floats(width);
      cast_elements(dtype, weights, DType::kFloat32, reinterpret_cast<std::byte*>(floats.data()),
                    width);
      norms.add(tensors[i].key, norm,
                static_cast<std::size_t>(
                    std::ranges::count_if(floats, [](float weight) { return weight < 0; })));
    }
  }
  return norms;
}

/// Returns whether a first row of the first matrices has other elements than 0: files of zeros,
/// made to measure something, are no models.
bool has_values(const CheckpointReader& reader) {
  constexpr int kMatrices = 16;
  int matrices = 0;
  const auto& tensors = reader.metadata().tensors;
  for (std::size_t i = 0; i < tensors.size() && matrices < kMatrices; ++i) {
    Box row = whole(tensors[i].global_shape());
    const DType dtype = tensors[i].properties.dtype;
    if (row.dims() < 2 || numel(row.sizes) == 0 || !can_cast(dtype, DType::kFloat32) ||
        glob_match("*norm*", tensors[i].key))
      continue;
    ++matrices;
    std::fill(row.sizes.begin(), row.sizes.end() - 1, 1);
    row.sizes.back() = std::min<std::int64_t>(row.sizes.back(), 4096);
    ElementStats found;
    add_elements(found, dtype, read_box(reader, i, row).data(),
                 static_cast<std::size_t>(row.sizes.back()));
    if (found.zero < found.count) return true;
  }
  return false;
}

Finding doubt(const Norms& norms, std::string message) {
  return {FindingCode::kValuesImplausible, std::move(message), {norms.key}};
}

}  // namespace

NormKeys norms_of(const KeyMap& map, const MapNumbers& numbers, const MappedKeys& keys) {
  NormKeys norms;
  if (map.find_number(kLayerNorm1p) != nullptr) norms.because = numbers.describe(kLayerNorm1p);
  const std::optional<bool> usual = lack_1(map, &numbers);
  for (std::size_t i = 0; i < keys.tensors.size(); ++i) {
    const MapRow& row = map.tensors[keys.rows[i]];
    if (!is_norm(row) || map.towers.have(row.megatron)) continue;
    std::optional<bool> without_1 = usual;
    if (row.add.value != 0 && (row.add.only_if.empty() || numbers.is_true(row.add.only_if)))
      without_1 = (row.add.value < 0) == (keys.sides.to == KeyNames::kMegatron);
    if (without_1) (*without_1 ? norms.without_1 : norms.factors).push_back(keys.tensors[i].key);
  }
  return norms;
}

void require_norms_like(const KeyMap& map, const MapNumbers& numbers, const KeyMap& shipped) {
  const bool adds = std::ranges::any_of(
      map.tensors, [](const MapRow& row) { return is_norm(row) && row.add.value != 0; });
  const std::optional<bool> without_1 = lack_1(map, &numbers);
  const bool expected = lack_1(shipped, nullptr).value_or(false);
  if (adds || !without_1 || *without_1 == expected) return;
  throw_error(ErrorCode::kUnsupported,
              "the map {} is not for this model: config.json names the model type of the "
              "shipped map {}, whose norms {} the 1 that those of {} {} ({}); use --map {}, or "
              "a map of yours that says what becomes of it, see docs/maps.md",
              quote(map.family), quote(shipped.family), expected ? "lack" : "have",
              quote(map.family), expected ? "have" : "lack", kLayerNorm1p, shipped.family);
}

Findings probe_norms(const CheckpointReader& mapped, const NormKeys& norms) {
  Norms factors, without_1;
  bool compute_nothing = false;
  try {
    factors = read_norms(mapped, norms.factors);
    without_1 = read_norms(mapped, norms.without_1);
    compute_nothing = factors.are_all(0) && has_values(mapped);
  } catch (const CheckpointError&) {
    return {};  // the copy reports what cannot be read
  }
  if (compute_nothing)
    throw_error(ErrorCode::kUnsupported, {.key = factors.key},
                "all weights of all norms are 0, and the map treats them as factors ({}): the "
                "model would compute nothing. Norms that lack the 1 are so before training "
                "({}); a map of yours can add it, and --set {}=false takes them as they are, "
                "see docs/maps.md",
                norms.because, kNames[1], kLayerNorm1p);
  Findings findings;
  if (2 * factors.around_0 > factors.count)
    findings.push_back(doubt(
        factors, str_format("norms look as if they lacked the 1, and the map takes them to have it "
                            "({}): {} of {} have a mean clearly below 0 or small weights of both "
                            "signs; the lowest mean is {:.3f} in {}",
                            norms.because, grouped(factors.around_0), grouped(factors.count),
                            factors.lowest, quote(factors.key))));
  if (without_1.are_all(1))
    findings.push_back(doubt(
        without_1, str_format("norms look as if they had the 1, and the map takes them to lack it: "
                              "all weights of all norms are 1 ({} and others)",
                              quote(without_1.key))));
  return findings;
}

}  // namespace dckpt
