#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/maps/key_map.h"
#include "configs/maps/key_pattern.h"
#include "migration/maps/sides/map_target.h"

namespace dckpt {

/// The names of numbers in key patterns: of layers, of experts, of layers for multi-token
/// prediction, of layers of a vision tower, and of blocks of a vision tower that is Hugging Face's
/// own module in Megatron and has no axis for them in any layout.
inline constexpr const char* kLayer = "l";
inline constexpr const char* kExpert = "e";
inline constexpr const char* kMtpLayer = "m";
inline constexpr const char* kVisionLayer = "v";
inline constexpr const char* kVisionBlock = "b";

/// The values of the numbers in a row's key: its layer and expert.
using RowNumbers = std::vector<std::int64_t>;

/// Returns the names of a row's numbers that a pattern lacks. They are leading axes of its tensors.
std::vector<std::string> stacked_numbers(const KeyPattern& row, const KeyPattern& pattern);

/// Returns the values of `names` among the numbers of an instance of `row`.
RowNumbers pick(const KeyPattern& row, std::span<const std::int64_t> instance,
                const std::vector<std::string>& names);

/// A tensor that a row has on one side, under one of several names.
struct SideTensor {
  std::vector<KeyPattern> names;  ///< the first is written
};

/// The form of a row on one side.
struct SideForm {
  std::vector<SideTensor> tensors;
  /// Make Megatron's tensor, or all of its tensors joined, from `tensors`.
  std::vector<MapTransform> steps;
  bool experts_in_rows = false;  ///< HfTensors::has_experts_in_rows()
};

/// Returns the numbers of a row that are leading axes of a form's tensors: those that `pattern`
/// lacks, without {e} if experts share the rows of the tensors.
std::vector<std::string> leading_axes(const KeyPattern& row, const KeyPattern& pattern,
                                      const SideForm& form);

/// The forms of every row on one side. Numbers of a row that its names lack are leading axes.
struct MapSide {
  KeyNames names = KeyNames::kMegatron;
  MegatronLayout layout = MegatronLayout::kHomogeneous;
  std::vector<std::vector<SideForm>> rows;  ///< forms of each row; the first is written
};

/// Returns a side of the map. `layers` is the number of layers after which some of Hugging Face's
/// keys continue to count.
MapSide side_of(const KeyMap& map, KeyNames names, MegatronLayout layout,
                std::optional<std::int64_t> layers);

/// Returns whether some of Hugging Face's keys number layers after those of the model.
bool has_layers_behind(const KeyMap& map);

/// Returns a pattern of Megatron's keys in the form that a layout gives it.
KeyPattern in_layout(const KeyPattern& pattern, MegatronLayout layout);

/// The tensor of a row that a key belongs to, as positions in MapSide.
struct KeyUse {
  std::size_t row = 0;
  std::size_t form = 0;
  std::size_t tensor = 0;
  std::size_t name = 0;
  RowNumbers numbers{};
};

/// An index that finds the rows of a key, in time linear in the key.
class SideIndex {
 public:
  explicit SideIndex(const MapSide& side);
  /// Returns several uses where rows for dense and for other layers have the same key. A key that
  /// continues to count after the model's layers is not a key of one of those layers.
  std::vector<KeyUse> find(const std::string& key) const;

 private:
  struct Entry {
    KeyUse use;
    const KeyPattern* pattern;
  };
  std::unordered_map<std::string, std::vector<Entry>> by_skeleton_;
};

}  // namespace dckpt
