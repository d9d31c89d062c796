#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/planning/save/collect.h"

namespace dckpt {

/// Which boxes of a key are the same. Where boxes arrive in ascending order, which is how ranks in
/// order hold a sharded tensor, none are, and nothing is kept. Otherwise they are sorted, and equal
/// ones are neighbours.
class EqualBoxes {
 public:
  explicit EqualBoxes(const PlannedKey& planned);

  /// The boxes in order, equal ones in the order of arrival.
  std::uint32_t at(std::uint32_t position) const {
    return sorted_.empty() ? position : sorted_[position];
  }
  /// All boxes equal to this one, itself included, in the order of arrival.
  std::span<const std::uint32_t> equals_of(const std::uint32_t& box) const;
  bool is_first(std::uint32_t box) const {
    return sorted_.empty() || sorted_[group_begin_[box]] == box;
  }

 private:
  std::vector<std::uint32_t> sorted_;
  std::vector<std::uint32_t> group_begin_;  ///< of each box, where its equals begin in `sorted_`
};

struct DedupedKey {
  EqualBoxes equal;
  std::vector<bool> left_out{};  ///< of each box, whether it is not stored; empty: all may be
};

/// One for each key. `store_empty`: boxes without elements are stored, unless another box begins at
/// the same offset, which is what DCP's readers know a chunk by. Otherwise they are not, if the
/// tensor has elements at all.
std::vector<DedupedKey> deduplicate(std::span<const PlannedKey> keys, bool store_empty);

}  // namespace dckpt
