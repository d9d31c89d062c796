#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mapping/geometry/box.h"
#include "mapping/planning/validate.h"

namespace dckpt {

/// A box of a tensor that a rank has, to store it or as a replica that is not stored.
struct RankRegion {
  std::size_t rank = 0;
  std::uint32_t box = 0;  ///< position in the list of boxes
  bool stored = true;
};

inline constexpr std::size_t kShownHoldings = 8;

/// Returns lines for below a problem's message that show which rank has which box around its place:
/// the overlap or hole, the axis that was probably cut wrongly, and up to kShownHoldings ranks,
/// those that touch the place first. Empty for problems without a region.
std::string ownership_table(ShapeView size, const BoxList& boxes,
                            std::span<const RankRegion> holdings, const CoverageProblem& problem);

}  // namespace dckpt
