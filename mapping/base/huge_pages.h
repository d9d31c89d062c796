#pragma once

#include <cstddef>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Requests huge pages for memory that has not been touched yet: the first touch of large memory
/// then takes a third of the time. Partial huge pages at both ends stay as they are, and so does
/// everything on a system without huge pages.
void prefer_huge_pages(void* memory, std::size_t bytes) noexcept;

}  // namespace dckpt
