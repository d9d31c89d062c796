#pragma once

#include <vector>

#include "mapping/base/fields.h"
#include "operations/inspect/diff.h"

namespace dckpt {

/// The differences of a tensor, an object, or the common state, which travel between ranks.
struct Differences {
  bool compared = true;  ///< false if neither side has any
  std::vector<Difference> found{};
};
constexpr auto fields(const Differences*) {
  return std::tuple(Field(&Differences::compared), Field(&Differences::found));
}

}  // namespace dckpt
