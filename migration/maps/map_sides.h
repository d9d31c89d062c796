#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/key_map.h"
#include "configs/key_pattern.h"
#include "migration/maps/apply_key_map.h"

namespace dckpt {

/// Values of the numbers in a row's key: which layer and expert.
using RowNumbers = std::vector<std::int64_t>;

/// The numbers of a row that a pattern lacks: leading axes of its tensors.
std::vector<std::string> stacked_numbers(const KeyPattern& row, const KeyPattern& pattern);

/// Those of `names`, from the numbers of an instance of `row`.
RowNumbers pick(const KeyPattern& row, std::span<const std::int64_t> instance,
                const std::vector<std::string>& names);

/// A tensor that a row has on one side: under one of these names.
struct SideTensor {
  std::vector<KeyPattern> names;  ///< the first is written
};

/// How one side has a row.
struct SideForm {
  std::vector<SideTensor> tensors;
  std::vector<MapTransform> steps;  ///< that make Megatron's tensor of them, or all of these as one
};

/// How one side has every row. Numbers of a row that its names lack are leading axes.
struct MapSide {
  KeyNames names = KeyNames::kMegatron;
  MegatronLayout layout = MegatronLayout::kHomogeneous;
  std::vector<std::vector<SideForm>> rows;  ///< forms of each row; the first is written
};

/// `layers`: how many, so that Hugging Face's keys can count on behind them.
MapSide side_of(const KeyMap& map, KeyNames names, MegatronLayout layout,
                std::optional<std::int64_t> layers);

/// Whether rows have layers that Hugging Face's keys count on behind the model's.
bool has_layers_behind(const KeyMap& map);

/// A pattern of Megatron's keys as a layout has it.
KeyPattern in_layout(const KeyPattern& pattern, MegatronLayout layout);

/// Which tensor of a row a key is.
struct KeyUse {
  std::size_t row = 0;
  std::size_t form = 0;
  std::size_t tensor = 0;
  std::size_t name = 0;
  RowNumbers numbers{};
};

/// Finds the rows that keys belong to, in time linear in the key.
class SideIndex {
 public:
  explicit SideIndex(const MapSide& side);
  /// Several, where rows for dense and for other layers have the same key. A key that counts on
  /// behind the layers is none of a layer.
  std::vector<KeyUse> find(const std::string& key) const;

 private:
  struct Entry {
    KeyUse use;
    const KeyPattern* pattern;
  };
  std::unordered_map<std::string, std::vector<Entry>> by_skeleton_;
};

}  // namespace dckpt
