#include "mapping/planning/progression.h"

#include <algorithm>
#include <numeric>

#include "mapping/base/checked.h"

namespace dckpt {

std::optional<Progression> intersect(const Progression& a, const Progression& b) {
  if (a.count <= 0 || b.count <= 0) return std::nullopt;
  const std::int64_t last = std::min(a.last(), b.last());
  const std::int64_t from = std::max(a.first, b.first);
  if (from > last) return std::nullopt;
  const std::int64_t divisor = std::gcd(a.step, b.step);
  if ((b.first - a.first) % divisor != 0) return std::nullopt;
  // Tries positions of the one with the larger step until one of them belongs to the other, too.
  const auto& [wide, narrow] = a.step >= b.step ? std::pair(a, b) : std::pair(b, a);
  std::int64_t first = wide.first + (from - wide.first + wide.step - 1) / wide.step * wide.step;
  for (; first <= last && (first - narrow.first) % narrow.step != 0;) first += wide.step;
  if (first > last) return std::nullopt;
  const auto step = checked_mul(a.step / divisor, b.step);
  const std::int64_t count = step ? (last - first) / *step + 1 : 1;
  return Progression{first, count, count == 1 ? 1 : *step};
}

}  // namespace dckpt
