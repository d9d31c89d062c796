#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt {

/// Whether lone surrogates may stand in UTF-8, as three bytes each (Python's "surrogatepass").
enum class Surrogates : bool { kRefuse, kPass };

struct Utf8Sequence {
  std::size_t length = 0;  ///< 0: there is no well-formed sequence
  std::uint32_t code_point = 0;
};

/// The sequence at the front of `text`, in its shortest form and up to U+10FFFF.
Utf8Sequence decode_utf8(std::string_view text, Surrogates surrogates) noexcept;

/// Whether a code point beyond ASCII steers a terminal or the direction of text.
bool steers_text(std::uint32_t code_point) noexcept;

/// Whether `text` consists of such sequences.
bool is_utf8(std::string_view text, Surrogates surrogates) noexcept;

/// Appends a code point up to U+10FFFF; a surrogate becomes three bytes.
void append_utf8(Bytes& out, std::uint32_t code_point);

}  // namespace dckpt
