#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/planning/save/collect.h"

namespace dckpt {

/// The groups of equal boxes of a key. Boxes that arrive in ascending order, as ranks in order hold
/// a sharded tensor, are all different, and nothing is kept. Otherwise they are sorted, so that
/// equal boxes are neighbors.
class EqualBoxes {
 public:
  explicit EqualBoxes(const PlannedKey& planned);

  /// Returns the boxes in order, equal ones in the order of arrival.
  std::uint32_t at(std::uint32_t position) const {
    return sorted_.empty() ? position : sorted_[position];
  }
  /// Returns all boxes equal to this one, itself included, in the order of arrival.
  std::span<const std::uint32_t> equals_of(const std::uint32_t& box) const;
  bool is_first(std::uint32_t box) const {
    return sorted_.empty() || sorted_[group_begin_[box]] == box;
  }

 private:
  std::vector<std::uint32_t> sorted_;
  std::vector<std::uint32_t> group_begin_;  ///< for each box, the position in `sorted_` where its
                                            ///< equals begin
};

struct DedupedKey {
  EqualBoxes equal;
  std::vector<bool> left_out{};  ///< for each box, whether it is not stored; empty: all may be
};

/// Returns one entry for each key. With `store_empty`, boxes without elements are stored, unless
/// another box begins at the same offset, by which DCP's readers identify a chunk. Otherwise they
/// are not, if the tensor has elements at all.
std::vector<DedupedKey> deduplicate(std::span<const PlannedKey> keys, bool store_empty);

}  // namespace dckpt
