#pragma once

#include <span>
#include <string>

#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// A phase of work that many ranks do concurrently. All times are in seconds.
struct TimeSpan {
  std::string name;
  double start = 0;    ///< since the beginning
  double fastest = 0;  ///< duration on the fastest rank
  double slowest = 0;  ///< duration on the slowest rank
};

/// Draws a line for each phase under a time axis: solid until the fastest rank was done, shaded
/// until the slowest was.
Picture waterfall(std::span<const TimeSpan> phases, const PictureStyle& style);

}  // namespace dckpt::tool
