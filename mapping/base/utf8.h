#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt {

/// The treatment of lone surrogates, of three bytes each, in UTF-8 (kPass: Python's
/// "surrogatepass").
enum class Surrogates : bool { kRefuse, kPass };

struct Utf8Sequence {
  std::size_t length = 0;  ///< 0: there is no well-formed sequence
  std::uint32_t code_point = 0;
};

/// Decodes the sequence at the front of `text`, in its shortest form and up to U+10FFFF.
Utf8Sequence decode_utf8(std::string_view text, Surrogates surrogates) noexcept;

/// Returns whether a code point beyond ASCII controls a terminal or the direction of text.
bool steers_text(std::uint32_t code_point) noexcept;

/// Returns whether `text` consists of well-formed sequences.
bool is_utf8(std::string_view text, Surrogates surrogates) noexcept;

/// Appends a code point up to U+10FFFF; a surrogate becomes three bytes.
void append_utf8(Bytes& out, std::uint32_t code_point);

}  // namespace dckpt
