#include "dist_checkpointing/load/misfit.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/open/key_groups.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

/// Returns whether axis 0 of a key is a vocabulary, which Megatron pads for the tensor-parallel
/// size.
bool has_vocabulary_axis(const std::string& key) {
  return key.ends_with("word_embeddings.weight") || key.ends_with("output_layer.weight") ||
         key.ends_with("output_layer.bias");
}

/// Describes the axes that differ, the likely reason, and the remedy.
std::string advice_for_shapes(const std::string& key, ShapeView stored, ShapeView asked) {
  if (stored.size() != asked.size()) {
    const bool is_slice = stored.size() == asked.size() + 1 && equal(stored.subspan(1), asked);
    const bool is_stack = asked.size() == stored.size() + 1 && equal(asked.subspan(1), stored);
    std::string text = "the number of axes differs";
    if (is_slice)
      text +=
          "; the checkpoint has one more in front, as for stacked layers: ask for a row of it "
          "(prepend_axis_num)";
    if (is_stack)
      text +=
          "; one more in front is asked for, as for stacked layers, but the checkpoint has a "
          "single one";
    return text;
  }
  std::vector<std::string> axes;
  for (std::size_t axis = 0; axis < stored.size(); ++axis) {
    if (stored[axis] == asked[axis]) continue;
    axes.push_back(
        str_format("axis {} has {} in the checkpoint, not {}", axis, stored[axis], asked[axis]));
  }
  std::string text;
  for (const std::string& axis : axes) text += (text.empty() ? "" : ", ") + axis;
  if (axes.size() == 1 && stored[0] != asked[0] && has_vocabulary_axis(key)) {
    text += ", likely since the vocabulary is padded for another tensor-parallel size";
  }
  const bool less = std::ranges::equal(asked, stored, std::ranges::less_equal{});
  return text + "; load.allow_shape_mismatch for this key reads the common part" +
         (less ? ", and load.allow_truncation drops the rest" : " and pads the rest");
}

std::string grids_as_text(const std::set<Shape>& grids) {
  std::string text;
  for (const Shape& grid : grids) text += (text.empty() ? "" : ", ") + to_string(grid);
  return text;
}

}  // namespace

std::string advice_for_uneven(const ShardedTensor& shard, ShapeView stored) {
  if (stored.size() != shard.global_shape.size() || !shard.axis_fragmentations) return "";
  const Shape& pieces = *shard.axis_fragmentations;
  for (std::size_t axis = 0; axis < stored.size(); ++axis) {
    const std::int64_t asked = shard.global_shape[axis];
    const std::int64_t count = pieces[axis];
    if (count < 2 || asked == stored[axis] || stored[axis] % count == 0) continue;
    const std::int64_t share = stored[axis] / count;
    if (asked != share * count && asked != (share + 1) * count) continue;
    return str_format(
        "{} do not divide by {} ranks: ShardedTensor::from_box describes parts of {} and of {}; ",
        stored[axis], count, share + 1, share);
  }
  return "";
}

bool shape_mismatch_allowed(const ShardedTensor& shard, const LoadOptions& options) {
  return shard.allow_shape_mismatch ||
         std::ranges::any_of(options.allow_shape_mismatch, [&](const std::string& pattern) {
           return glob_match(pattern, shard.key);
         });
}

std::vector<Misfit> misfits_of_shard(const ShardedTensor& shard,
                                     const TensorStorageMetadata& stored,
                                     const LoadOptions& options, bool is_dcp) {
  const Shape& shape = stored.global_shape();
  const DType dtype = stored.properties.dtype;
  std::vector<Misfit> misfits;
  const bool castable = can_cast(dtype, shard.dtype);
  if (dtype != shard.dtype && !(castable && options.cast == Cast::kAllow)) {
    misfits.push_back(
        {str_format("dtype mismatch for loaded ({}) and expected ({}) tensor for key",
                    to_string(dtype), to_string(shard.dtype)),
         shard.key,
         castable ? "convert the destination, or set load.cast: allow; nothing is cast silently"
                  : "convert the destination; load.cast converts floating types into each other, "
                    "and integers into wider ones, but not these"});
  }
  const bool may_differ =
      shape.size() == shard.global_shape.size() && shape_mismatch_allowed(shard, options);
  if (!equal(shape, shard.global_shape) && !may_differ) {
    misfits.push_back(
        {is_dcp
             ? str_format("Size mismatch between saved {} and current: {} for", to_string(shape),
                          to_string(shard.global_shape))
             : str_format("Global shape mismatch for loaded ({}) and expected ({}) tensor for key",
                          to_string(shape), to_string(shard.global_shape)),
         shard.key,
         advice_for_uneven(shard, shape) +
             advice_for_shapes(shard.key, shape, shard.global_shape)});
  }
  return misfits;
}

std::optional<Misfit> misfit_of(const ShardedObject& object, const StoredKeys& keys,
                                const LoadOptions& options) {
  if (keys.tensor(object.unique_key()) || keys.tensor(object.key))
    return Misfit{"asked for as an object, but stored as a tensor:", object.key};
  if (when_resharded(object, keys, options.objects) != WhenResharded::kError) return std::nullopt;
  return Misfit{
      str_format("objects in a grid of {} are asked for, but the checkpoint has one of {} for key",
                 to_string(object.global_shape), grids_as_text(*keys.grids(object.key))),
      object.key,
      "it was saved under another layout; load.objects says what becomes of it: [{keys: "
      "PATTERN, when_resharded: keep, reinit, drop or gather}]"};
}

std::string to_string(const Misfit& misfit) {
  return str_format("{} {}{}", misfit.what, quote(misfit.key),
                    misfit.advice.empty() ? "" : ": " + misfit.advice);
}

std::string table_of(std::span<const Misfit> misfits) {
  std::map<std::tuple<std::string, std::string, std::string>, KeySet> lines;
  for (const Misfit& misfit : misfits)
    lines[{misfit.what, misfit.advice, without_numbers(misfit.key)}].insert(misfit.key);
  std::string text;
  std::size_t shown = 0;
  for (const auto& [line, keys] : lines) {
    if (shown++ == kShownGroups)
      return str_format("{}\n  … and {} more", text, grouped(lines.size() - kShownGroups));
    const auto& [what, advice, pattern] = line;
    text += str_format("\n  {} {}{}", what, to_string(group_keys(keys).front()),
                       advice.empty() ? "" : ": " + advice);
  }
  return text;
}

}  // namespace dckpt
