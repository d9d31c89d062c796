#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "configs/policy/options.h"
#include "configs/policy/rename.h"
#include "mapping/geometry/shape.h"
#include "mapping/planning/metadata.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {

/// Returns the name of an object under rules for keys; the grid in its unique key stays unchanged.
std::string renamed_object(const KeyRenamer& renamed, const std::string& unique_key);

/// The names of a checkpoint's contents, as rules rename them, with their positions in the
/// metadata.
class StoredKeys {
 public:
  StoredKeys() = default;
  /// Treats lost data as not stored. Throws CheckpointError (mismatch) if the rules give several
  /// stored keys the same name.
  StoredKeys(const Metadata& metadata, std::span<const RenameRule> rules,
             const LostData& lost = {});

  /// Return positions in Metadata::tensors and Metadata::objects. Megatron's objects have unique
  /// keys, with their place in the grid.
  std::optional<std::uint32_t> tensor(const std::string& key) const {
    return position(tensors_, key);
  }
  std::optional<std::uint32_t> object(const std::string& unique_key) const {
    return position(objects_, unique_key);
  }

  bool contains(const std::string& key) const {
    return tensors_.contains(key) || objects_.contains(key);
  }
  std::size_t size() const noexcept { return tensors_.size() + objects_.size(); }

  /// Returns the grids in which objects of this key, without its place, are stored; null if there
  /// is none. An extent of -1 is unknown.
  const std::set<Shape>* grids(const std::string& key) const;
  /// Returns the positions of the objects of this key, in the order of their places in the grid.
  std::vector<std::uint32_t> cells(const std::string& key) const;

  /// Returns all of these names.
  std::set<std::string> names() const;

  /// Returns the keys as Megatron compares them: of tensors, and of objects without their grid.
  std::set<std::string> keys() const;

 private:
  using Index = std::unordered_map<std::string, std::uint32_t>;

  static std::optional<std::uint32_t> position(const Index& index, const std::string& key);

  Index tensors_;
  Index objects_;
  std::map<std::string, std::set<Shape>> grids_;              // by key without the place
  using Cell = std::tuple<Shape, Shape, std::uint32_t>;       // grid, place, position
  std::unordered_map<std::string, std::vector<Cell>> cells_;  // by key without the place
};

}  // namespace dckpt
