#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/save/local_plan.h"

namespace DCKPT_API dckpt {

/// A key and every box of it that a rank plans, in the order of arrival.
struct PlannedKey {
  std::string key;
  WriteItem::Kind kind = WriteItem::Kind::kTensor;
  TensorProperties properties{};
  Shape size{};
  std::optional<Shape> flattened_shape{};
  bool flattened = false;
  std::string grid_key{};
  bool added = false;      ///< by a planner
  bool reshaped = false;   ///< a planner stores a part in another shape than the state's
  bool disagrees = false;  ///< reported: ranks disagree on the key, or a part lies outside

  BoxList boxes;
  std::vector<std::uint32_t> items;  ///< for each box, its position in CollectedItems::items
  /// For each box, whether it is not the main replica; empty when all are main.
  std::vector<bool> replicas;
  bool has_empty = false;  ///< there is a box without elements
  bool ascending = true;   ///< each box comes after the previous one, so no two are the same

  bool is_replica(std::size_t box) const { return !replicas.empty() && replicas[box]; }
  std::uint64_t bytes(std::size_t box) const {
    return kind == WriteItem::Kind::kObject
               ? 0
               : static_cast<std::uint64_t>(numel(boxes.sizes(box))) * item_size(properties.dtype);
  }
};

/// The local plans of all ranks, by key.
struct CollectedItems {
  struct Item {
    std::uint32_t key = 0;  ///< position in `keys`
    std::uint32_t box = 0;  ///< position in that key's boxes; kNoBox if its ranks disagree
  };
  static constexpr std::uint32_t kNoBox = UINT32_MAX;

  std::vector<PlannedKey> keys;
  std::vector<Item> items;              ///< rank after rank, in the order of their plans
  std::vector<std::size_t> rank_begin;  ///< first item of each rank
  std::vector<std::string> problems;

  std::size_t ranks() const noexcept { return rank_begin.size(); }
  std::size_t rank_end(std::size_t rank) const {
    return rank + 1 < rank_begin.size() ? rank_begin[rank + 1] : items.size();
  }
  std::size_t rank_of(std::uint32_t item) const;
};

/// Returns the order of boxes a and b: negative, zero or positive.
int compare_boxes(const BoxList& boxes, std::size_t a, std::size_t b) noexcept;

/// Collects local plans, rank after rank.
class ItemCollector {
 public:
  /// `compare_flattened`: a key that is flattened on only some ranks is a problem.
  explicit ItemCollector(bool compare_flattened) : compare_flattened_(compare_flattened) {}

  void add(const SavePlan& plan);
  CollectedItems finish() && { return std::move(collected_); }

 private:
  std::uint32_t number_of(const std::string& key);
  void add_item(std::uint32_t number, const WriteItem& item);
  void compare(PlannedKey& planned, const WriteItem& item);

  bool compare_flattened_;
  CollectedItems collected_;
  std::unordered_map<std::string, std::uint32_t> by_key_;
  std::vector<std::uint32_t> previous_;  ///< keys of the items of the previous rank
};

}  // namespace dckpt
