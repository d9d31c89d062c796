#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "migration/maps/assignment/source_rows.h"

namespace dckpt {

/// The side that a map writes, with the keys that each row has there. It refers to its arguments.
class TargetSide {
 public:
  /// Chooses names and layout: those of `target`, or what the source suggests. Adds a problem if
  /// the layout cannot hold the model.
  TargetSide(const KeyMap& map, const SourceRows& rows, const MapTarget& target,
             Completeness& completeness);

  KeyNames names() const noexcept { return side_.names; }
  bool is_megatron() const noexcept { return side_.names == KeyNames::kMegatron; }
  MegatronLayout layout() const noexcept { return side_.layout; }
  const SideForm& form(std::size_t row) const;
  const KeyPattern& pattern(std::size_t row, std::size_t tensor) const;
  /// Returns the prefix of the keys. Throws CheckpointError (invalid_argument) for one that they
  /// cannot have here.
  KeyPrefix prefix() const;

 private:
  /// Returns the number of the form in which a row is written, by the setting for experts.
  std::size_t written_form(std::size_t row) const;

  const KeyMap& map_;
  const SourceRows& rows_;
  const MapTarget& target_;
  MapSide side_;
  std::vector<std::size_t> written_{};  ///< the form of each row
};

/// Returns one of a row's names by its position among all of them: Megatron's, that of local
/// modules, aliases.
const std::string& spelling(const MapRow& row, std::size_t name);

}  // namespace dckpt
