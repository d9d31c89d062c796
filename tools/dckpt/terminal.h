#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "mapping/base/log.h"
#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// Whether the stream is a terminal, and whether it may be coloured (NO_COLOR unset, TERM not
/// "dumb").
bool is_terminal(std::FILE* stream);
bool wants_colour(std::FILE* stream);

/// Columns of a stream: of its terminal, else COLUMNS, else 80; kUnlimited (text_layout.h) if it is
/// not a terminal.
std::size_t columns_of_stream(std::FILE* stream);
/// Columns for prose such as help, which is broken in files and pipes, too.
std::size_t columns_of_prose();
/// Whether the locale (LC_ALL, LC_CTYPE, LANG) says UTF-8.
bool shows_unicode();
/// How pictures on stdout are drawn.
PictureStyle picture_style();

/// Text on stdout in a style; plain where stdout is not to be coloured.
enum class Style { kBold, kDim, kRed, kGreen, kYellow };
std::string styled(Style style, std::string_view text);

/// Keys, file names and the like, with nothing in them that a terminal obeys. Never cut.
std::string shown(std::string_view text);

/// A finished message (already escaped where it quotes): control bytes and broken UTF-8 that are
/// left are replaced.
std::string safe_message(std::string_view text);

/// Writes text for people to stdout: lines that are longer than the terminal is wide are wrapped,
/// each when its end is printed. A closed pipe silences all further output; any other failure is
/// thrown as CheckpointError (io).
void print(std::string_view text);
/// The same with all lines wrapped at this width.
void print_wrapped(std::string_view text, std::size_t columns);
void print(const Picture& picture);
/// Text for programs and bytes, as they are.
void print_bytes(const void* data, std::size_t size);
/// Writes out what is buffered; throws like print.
void flush_output();

/// "dckpt: error: …" and "dckpt: …" on stderr, wrapped on a terminal.
void print_error(std::string_view message);
void print_note(std::string_view message);
/// "dckpt: error: 2 problems in 'PATH', the first: …" of problems that stdout may have listed: the
/// first is not repeated if it is listed in the same place.
void print_problem_count(std::size_t problems, const std::string& path, const std::string& first,
                         bool is_listed);
/// The library's notices, warnings and errors in the same way, from any thread.
void print_log(LogLevel level, std::string_view message);

}  // namespace dckpt::tool
