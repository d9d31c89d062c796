#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dckpt::pickle {

inline constexpr std::size_t kMaxRowFields = 6;

/// A class with possibly millions of objects in a pickle, each with a few attributes that are
/// counts (ints that are not negative), tuples of counts, None, texts, or references to anything.
/// Such an object becomes a row: one node with a word for each attribute, instead of a dozen nodes.
struct RowType {
  std::string_view module;
  std::string_view name;
  std::array<std::string_view, kMaxRowFields> fields;  ///< empty ones at the end do not count

  constexpr std::size_t count() const noexcept {
    std::size_t count = kMaxRowFields;
    while (count > 0 && fields[count - 1].empty()) --count;
    return count;
  }
};

struct RowTypes {
  std::span<const RowType> classes;  ///< at most 15
  /// The class that makes a value of a tuple of counts, such as torch.Size.
  std::string_view counts_module;
  std::string_view counts_name;
};

}  // namespace dckpt::pickle
