#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "mapping/base/bytes.h"

namespace dckpt::pickle {

/// How protocol 0 spells values as text. Only spellings that all readers understand alike are
/// accepted; all functions return empty for others.

/// Decimal digits in an optional minus sign; no leading zeros, which some readers take for octal,
/// and no more digits than Python converts by default (4300). Two's complement, little-endian.
std::optional<Bytes> parse_decimal(std::string_view text);

/// What repr(float) gives: "1.5", "-1e-07", "inf", "nan".
std::optional<double> parse_real(std::string_view text);

/// A memo index: digits, below 2^32.
std::optional<std::uint32_t> parse_index(std::string_view text);

/// Whether `text` is ASCII without backslashes, so that all of protocol 0's spellings leave it as
/// it is.
bool is_plain_ascii(std::string_view text) noexcept;

/// Latin-1 with \uXXXX and \UXXXXXXXX → UTF-8 with surrogates passed.
std::optional<Bytes> decode_raw_unicode_escape(std::string_view text);

/// A quoted literal of Python 2 ('a\x41\n') → its bytes.
std::optional<Bytes> decode_quoted(std::string_view text);

/// UTF-8 of characters up to 0xFF → one byte each; empty if there are others.
std::optional<Bytes> encode_latin1(std::string_view utf8);

}  // namespace dckpt::pickle
