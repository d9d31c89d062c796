#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/save/local_plan.h"

namespace DCKPT_API dckpt {

/// An item of a rank's local plan that the rank writes, or a piece of it.
struct AssignedItem {
  std::uint32_t item = 0;  ///< position in the local plan
  /// The piece [begin, end) along cut_axis() of the chunk; the whole chunk when end is 0.
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const AssignedItem&, const AssignedItem&) = default;
};

/// Returns the axis along which a chunk is cut into pieces that are contiguous in it: the first
/// that is longer than 1.
[[nodiscard]] std::optional<std::size_t> cut_axis(ShapeView sizes) noexcept;

[[nodiscard]] Box piece_of(const Box& chunk, std::int64_t begin, std::int64_t end);

/// Returns the plan that a rank executes.
[[nodiscard]] SavePlan final_plan(const SavePlan& local, std::span<const AssignedItem> items);

}  // namespace dckpt
