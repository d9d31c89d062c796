#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "mapping/base/log.h"
#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// The output of the functions here. As one of several ranks, rank 0 prints plainly, since
/// launchers connect ranks to terminals that nobody sees, and other ranks print nothing.
enum class Output { kUsual, kPlain, kNone };
void set_output(Output output);

/// Return whether the stream is a terminal, and whether it may be colored (NO_COLOR unset, TERM not
/// "dumb").
bool is_terminal(std::FILE* stream);
bool wants_color(std::FILE* stream);

/// Returns the columns of a stream: of its terminal, else COLUMNS, else 80; kUnlimited
/// (text_layout.h) if it is not a terminal.
std::size_t columns_of_stream(std::FILE* stream);
/// Returns the columns for prose such as help, which is wrapped in files and pipes too.
std::size_t columns_of_prose();
/// Returns whether the locale (LC_ALL, LC_CTYPE, LANG) is UTF-8.
bool shows_unicode();
/// Returns the style of pictures on stdout.
PictureStyle picture_style();

/// Returns text for stdout in a style, plain if stdout is not to be colored.
enum class Style { kBold, kDim, kRed, kGreen, kYellow };
std::string styled(Style style, std::string_view text);

/// Returns a key or file name with everything escaped that a terminal would interpret. Never cut.
std::string shown(std::string_view text);

/// Replaces the remaining control bytes and invalid UTF-8 of a finished message, whose quotes are
/// already escaped.
std::string safe_message(std::string_view text);

/// Writes human-readable text to stdout. Lines longer than the width of the terminal are wrapped,
/// each when its end is printed. A closed pipe silences all further output; any other failure is
/// thrown as CheckpointError (io).
void print(std::string_view text);
/// Does the same with all lines wrapped at this width.
void print_wrapped(std::string_view text, std::size_t columns);
void print(const Picture& picture);
/// Writes text for programs, and bytes, unchanged.
void print_bytes(const void* data, std::size_t size);
/// Flushes buffered output; throws like print.
void flush_output();

/// Print "dckpt: error: …" and "dckpt: …" on stderr, wrapped on a terminal.
void print_error(std::string_view message);
void print_note(std::string_view message);
/// Prints "dckpt: error: 2 problems in 'PATH', the first: …" for problems that stdout may have
/// listed. Omits the first problem if stdout and stderr are the same file and it is listed there.
void print_problem_count(std::size_t problems, const std::string& path, const std::string& first,
                         bool is_listed);
/// Prints the library's notices, warnings and errors in the same way, from any thread.
void print_log(LogLevel level, std::string_view message);

}  // namespace dckpt::tool
