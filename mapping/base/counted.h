#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/base/text.h"

namespace dckpt {

/// Returns "1 file" or "1,024 files". `many` is the plural if it is not `one` with an s ("key is",
/// "keys are").
template <std::integral Number>
std::string counted(Number count, std::string_view one, std::string_view many = {}) {
  const auto size = static_cast<std::uint64_t>(count);
  const std::string number = std::cmp_less(count, 0) ? "-" + grouped(0 - size) : grouped(size);
  if (size == 1) return (number + ' ').append(one);
  return many.empty() ? (number + ' ').append(one) + 's' : (number + ' ').append(many);
}

}  // namespace dckpt
