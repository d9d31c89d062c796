#pragma once

#include <span>
#include <string>

#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// A phase of work that many ranks do at a time.
struct TimeSpan {
  std::string name;
  double start = 0;    ///< seconds, as all of these
  double fastest = 0;  ///< what the fastest rank took
  double slowest = 0;  ///< and the slowest
};

/// A line for each phase under an axis of the time: solid until the fastest rank was done, shaded
/// until the slowest was.
Picture waterfall(std::span<const TimeSpan> phases, const PictureStyle& style);

}  // namespace dckpt::tool
