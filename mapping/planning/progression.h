#pragma once

#include <cstdint>
#include <optional>

namespace dckpt {

/// Positions on an axis: first, first + step, …, `count` of them. The step is positive.
struct Progression {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t step = 1;

  std::int64_t last() const noexcept { return first + (count - 1) * step; }
  friend bool operator==(const Progression&, const Progression&) = default;
};

/// Returns the positions that both have; empty if there are none. A single position has the step 1.
std::optional<Progression> intersect(const Progression& a, const Progression& b);

}  // namespace dckpt
