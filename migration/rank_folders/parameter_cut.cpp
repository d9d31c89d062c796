#include "migration/rank_folders/parameter_cut.h"

#include <algorithm>
#include <array>
#include <limits>

#include "mapping/base/checked.h"

namespace dckpt {
namespace {

constexpr std::array<std::string_view, 10> kCutByRows{
    ".linear_qkv.weight",        ".linear_qkv.bias",       ".linear_fc1.weight",
    ".linear_fc1.bias",          "word_embeddings.weight", "output_layer.weight",
    "output_layer.bias",         ".linear_q_proj.weight",  ".linear_q_up_proj.weight",
    ".linear_kv_up_proj.weight",
};
constexpr std::array<std::string_view, 2> kColumns{".linear_proj.weight", ".linear_fc2.weight"};
constexpr std::array<std::string_view, 9> kReplicated{
    ".linear_proj.bias",
    ".linear_fc2.bias",
    "position_embeddings.weight",
    ".router.weight",
    ".router.bias",
    ".router.expert_bias",
    ".gate_weight",
    ".linear_q_down_proj.weight",
    ".linear_kv_down_proj.weight",
};

bool is_norm(std::string_view name) {
  return name.find("layernorm.") != std::string_view::npos ||
         name.find("layer_norm_") != std::string_view::npos ||
         name.find("_norm.") != std::string_view::npos;
}

std::size_t axis_of(const ParameterCut& cut) {
  return cut.axis == TensorParallel::kRows ? 0 : 1;
}

}  // namespace

std::optional<TensorParallel> tensor_parallel(std::string_view name) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (std::ranges::any_of(kCutByRows, ends)) return TensorParallel::kRows;
  if (std::ranges::any_of(kColumns, ends)) return TensorParallel::kColumns;
  if (is_norm(name) || std::ranges::any_of(kReplicated, ends)) return TensorParallel::kReplicated;
  return std::nullopt;
}

std::optional<std::string> gated_partner(std::string_view name) {
  const std::size_t fc1 = name.find(".linear_fc1.");
  if (fc1 == std::string_view::npos || is_norm(name.substr(fc1))) return std::nullopt;
  return std::string(name.substr(0, fc1)) + ".linear_fc2.weight";
}

bool is_gated(ShapeView fc1, ShapeView fc2) {
  return !fc1.empty() && fc2.size() == 2 && fc1[0] % 2 == 0 && fc1[0] / 2 == fc2[1];
}

std::optional<Shape> whole_shape(const ParameterCut& cut, ShapeView local, std::int64_t ranks) {
  Shape shape(local.begin(), local.end());
  if (cut.axis == TensorParallel::kReplicated) return shape;
  if (shape.size() <= axis_of(cut)) return std::nullopt;
  const auto extent = checked_mul(shape[axis_of(cut)], ranks);
  if (!extent || *extent > std::numeric_limits<std::int64_t>::max() / 2) return std::nullopt;
  shape[axis_of(cut)] = *extent;
  return shape;
}

std::optional<Shape> local_shape(const ParameterCut& cut, ShapeView whole, std::int64_t ranks) {
  Shape shape(whole.begin(), whole.end());
  if (cut.axis == TensorParallel::kReplicated) return shape;
  if (shape.size() <= axis_of(cut)) return std::nullopt;
  std::int64_t& extent = shape[axis_of(cut)];
  if (extent % (cut.gated ? 2 * ranks : ranks) != 0) return std::nullopt;
  extent /= ranks;
  return shape;
}

std::vector<CutPart> cut_parts(const ParameterCut& cut, ShapeView local, std::int64_t rank,
                               std::int64_t ranks) {
  const Box all = whole(local);
  if (cut.axis == TensorParallel::kReplicated) return {{all, all}};
  const std::size_t axis = axis_of(cut);
  const std::int64_t parts = cut.gated ? 2 : 1;
  const std::int64_t extent = local[axis] / parts;
  std::vector<CutPart> made;
  for (std::int64_t part = 0; part < parts; ++part) {
    CutPart& piece = made.emplace_back(CutPart{all, all});
    piece.local.sizes[axis] = piece.whole.sizes[axis] = extent;
    piece.local.offsets[axis] = part * extent;
    piece.whole.offsets[axis] = (part * ranks + rank) * extent;
  }
  return made;
}

}  // namespace dckpt
