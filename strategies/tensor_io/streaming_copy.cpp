#include "strategies/tensor_io/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace dckpt {

void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  const std::size_t head =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kLine; to += kLine, from += kLine, bytes -= kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const line = reinterpret_cast<__m128i*>(to);
    const __m128i parts[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                             _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) _mm_stream_si128(line + i, parts[i]);
  }
  _mm_sfence();  // before other threads hear of the copy
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace dckpt
