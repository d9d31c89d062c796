#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace dckpt::tool {

/// Whether the stream is a terminal, and whether it may be coloured (NO_COLOR unset, TERM not
/// "dumb").
bool is_terminal(std::FILE* stream);
bool wants_colour(std::FILE* stream);

/// Text on stdout in a style; plain where stdout is not to be coloured.
enum class Style { kBold, kDim, kRed, kGreen, kYellow };
std::string styled(Style style, std::string_view text);

/// Keys, file names and the like, with nothing in them that a terminal obeys. Never cut.
std::string shown(std::string_view text);

/// A finished message (already escaped where it quotes): control bytes and broken UTF-8 that are
/// left are replaced.
std::string safe_message(std::string_view text);

/// Writes to stdout. A closed pipe silences all further output; any other failure is thrown as
/// CheckpointError (io).
void print(std::string_view text);
void print_bytes(const void* data, std::size_t size);
/// Writes out what is buffered; throws like print.
void flush_output();

/// "dckpt: error: …" and "dckpt: …" on stderr.
void print_error(std::string_view message);
void print_note(std::string_view message);

}  // namespace dckpt::tool
