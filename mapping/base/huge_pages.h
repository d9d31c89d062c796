#pragma once

#include <cstddef>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Asks that memory which was not touched yet comes in huge pages: the first touch of large memory
/// takes a third of the time. Parts of huge pages at both ends stay as they are, and so does
/// everything where the system has none.
void prefer_huge_pages(void* memory, std::size_t bytes) noexcept;

}  // namespace dckpt
