#pragma once

#include <cstddef>

namespace dckpt {

/// Copies as memcpy() does, for large copies that are not read again soon. Bypasses the caches,
/// which would fetch each line of the destination before it is overwritten.
void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace dckpt
