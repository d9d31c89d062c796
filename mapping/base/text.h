#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Returns `text` in single quotes, safe for a terminal and for JSON: control bytes, quotes,
/// backslashes and bytes that are not valid UTF-8 are escaped as in C, and text of more than
/// `limit` bytes is cut with an ellipsis.
std::string quote(std::string_view text, std::size_t limit = 200);

/// Escapes the same way without adding quotes; for tables.
std::string printable(std::string_view text, std::size_t limit = 200);

/// Returns whether `text` is UTF-8 without surrogates and overlong forms.
bool is_utf8(std::string_view text) noexcept;

/// Returns "'a', 'b', 'c' and 7 more".
std::string quoted_list(std::span<const std::string> items, std::size_t limit = 5);

/// Returns the candidate closest to `word` by edit distance, if it is close enough to be a likely
/// slip.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

/// Matches the whole text as a shell does: `*` any run (dots and slashes included), `?` one byte,
/// `[a-c]`, `[!a-c]`. Takes linear memory and does not recurse.
bool glob_match(std::string_view pattern, std::string_view text);

/// Returns "1.5 KiB" for 1536.
std::string human_bytes(std::uint64_t bytes);

/// Returns "1,234,567" for 1234567.
std::string grouped(std::uint64_t number);

/// Parses "12", "8GiB", "64 MiB" or "1.5G" to bytes (KiB = 1024; K/M/G/T alone also mean 1024).
/// Empty if it is not a size.
std::optional<std::uint64_t> parse_size(std::string_view text);

/// Parses decimal digits without sign or blanks. Empty for anything else and on overflow.
std::optional<std::uint64_t> parse_u64(std::string_view text);

std::vector<std::string> split(std::string_view text, char separator);

}  // namespace dckpt
