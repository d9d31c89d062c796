#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

static_assert(std::endian::native == std::endian::little,
              "dckpt reads and writes little-endian data in place");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;
using MutableByteView = std::span<std::byte>;

inline ByteView as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string_view as_text(ByteView bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Bytes to_bytes(std::string_view text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

/// Reads a little-endian integer at `offset`; the caller has checked the range.
template <typename T>
requires std::is_trivially_copyable_v<T> T load_le(ByteView bytes, std::size_t offset)
noexcept {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
requires std::is_trivially_copyable_v<T>
void append_le(Bytes& out, T value) {
  const auto* first = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), first, first + sizeof value);
}

}  // namespace dckpt
