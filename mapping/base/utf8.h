#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Converts UTF-8 (surrogates passed) of characters up to U+00FF to one byte each. Returns nothing
/// if there are others.
std::optional<Bytes> encode_latin1(std::string_view utf8);

}  // namespace dckpt
