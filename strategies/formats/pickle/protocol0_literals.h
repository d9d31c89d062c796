#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt::pickle {

/// Readers of protocol 0's text spellings of values. Only spellings that all readers understand
/// alike are accepted; the functions return an empty result for others.

/// Reads decimal digits after an optional minus sign; no leading zeros, which some readers take for
/// octal, and no more digits than Python converts by default (4300). Returns two's complement,
/// little-endian.
std::optional<Bytes> parse_decimal(std::string_view text);

/// Reads the output of repr(float): "1.5", "-1e-07", "inf", "nan".
std::optional<double> parse_real(std::string_view text);

/// Reads a memo index: digits, below 2^32.
std::optional<std::uint32_t> parse_index(std::string_view text);

/// Returns whether `text` is ASCII without backslashes, which all of protocol 0's spellings leave
/// as it is.
bool is_plain_ascii(std::string_view text) noexcept;

/// Converts Latin-1 with \uXXXX and \UXXXXXXXX to UTF-8 with surrogates passed.
std::optional<Bytes> decode_raw_unicode_escape(std::string_view text);

/// Converts a quoted literal of Python 2 ('a\x41\n') to its bytes.
std::optional<Bytes> decode_quoted(std::string_view text);

/// Converts UTF-8 of characters up to 0xFF to one byte each; empty if there are others.
std::optional<Bytes> encode_latin1(std::string_view utf8);

}  // namespace dckpt::pickle
