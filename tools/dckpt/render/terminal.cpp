#include "tools/dckpt/render/terminal.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

Output output_is = Output::kUsual;
bool reader_is_gone = false;  // stdout is a pipe without a reader

void check(bool ok) {
  if (ok) return;
  if (errno == EPIPE) {
    reader_is_gone = true;
    return;
  }
  throw_error(ErrorCode::kIo,
              std::string("cannot write to standard output: ") + std::strerror(errno));
}

void write_bytes(const void* data, std::size_t size) {
  if (!reader_is_gone && output_is != Output::kNone)
    check(std::fwrite(data, 1, size, stdout) == size);
}

std::string unfinished_line;  // printed, but not yet complete enough to wrap

void write_unfinished_line() {
  const std::string line = wrapped(std::exchange(unfinished_line, ""), columns_of_stream(stdout));
  write_bytes(line.data(), line.size());
}

/// Wraps every line of a text, its last one included.
std::string wrapped_lines(std::string_view text, std::size_t columns) {
  std::string out;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find('\n', start);
    out += wrapped(text.substr(start, end - start), columns);
    if (end == std::string_view::npos) return out;
    out += '\n';
    start = end + 1;
  }
}

void print_to_stderr(const std::string& text) {
  if (output_is == Output::kNone) return;
  if (!unfinished_line.empty()) write_unfinished_line();
  std::fflush(stdout);
  const std::string lines = wrapped_lines(text, columns_of_stream(stderr));
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

}  // namespace

void set_output(Output output) {
  output_is = output;
}

bool is_terminal(std::FILE* stream) {
  return output_is == Output::kUsual && isatty(fileno(stream)) == 1;
}

bool wants_color(std::FILE* stream) {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  return is_terminal(stream) && (no_color == nullptr || *no_color == '\0') && term != nullptr &&
         std::strcmp(term, "dumb") != 0;
}

std::size_t columns_of_stream(std::FILE* stream) {
  constexpr std::size_t kFewest = 20;  // narrower text is illegible, so the terminal breaks lines
                                       // itself
  constexpr std::size_t kMost = 10'000;
  if (!is_terminal(stream)) return kUnlimited;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::max<std::size_t>(size.ws_col, kFewest);
  const char* const columns = std::getenv("COLUMNS");
  const std::uint64_t said = columns == nullptr ? 0 : parse_u64(columns).value_or(0);
  return said == 0 ? 80 : std::clamp<std::uint64_t>(said, kFewest, kMost);
}

std::size_t columns_of_prose() {
  const std::size_t columns = columns_of_stream(stdout);
  return columns == kUnlimited ? 100 : columns;
}

bool shows_unicode() {
  const auto said = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  std::string locale;
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = said(name);
  }
  std::ranges::transform(locale, locale.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return locale.find("UTF-8") != std::string::npos || locale.find("UTF8") != std::string::npos;
}

PictureStyle picture_style() {
  // Pictures grow with the terminal up to the width where they are easiest to read.
  constexpr std::size_t kInPipes = 80;
  constexpr std::size_t kMost = 120;
  const std::size_t columns = columns_of_stream(stdout);
  return {.columns = columns == kUnlimited ? kInPipes : std::min(columns, kMost),
          .unicode = shows_unicode(),
          .color = wants_color(stdout)};
}

std::string styled(Style style, std::string_view text) {
  static const bool colored = wants_color(stdout);
  if (!colored) return std::string(text);
  static constexpr const char* kCodes[] = {"1", "2", "31", "32", "33"};
  return str_format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(style)], text);
}

std::string shown(std::string_view text) {
  return printable(text, text.size());
}

std::string safe_message(std::string_view text) {
  // `printable` escapes backslashes and line breaks, which the message already uses for quotes and
  // layout, so it gets the text between them.
  std::string safe;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find_first_of("\\\n", start);
    safe += printable(text.substr(start, end - start), text.size());
    if (end == std::string_view::npos) return safe;
    safe += text[end];
    start = end + 1;
  }
}

void print_bytes(const void* data, std::size_t size) {
  if (!unfinished_line.empty()) write_unfinished_line();
  write_bytes(data, size);
}

void print(std::string_view text) {
  const std::size_t columns = columns_of_stream(stdout);
  if (columns == kUnlimited) return write_bytes(text.data(), text.size());
  const std::size_t end = text.rfind('\n');
  if (end == std::string_view::npos) return void(unfinished_line += text);
  const std::string lines =
      wrapped_lines(std::exchange(unfinished_line, "") + std::string(text.substr(0, end)),
                    columns) +
      '\n';
  write_bytes(lines.data(), lines.size());
  unfinished_line = text.substr(end + 1);
}

void print_wrapped(std::string_view text, std::size_t columns) {
  print(wrapped_lines(text, columns));
}

void print(const Picture& picture) {
  for (const std::string& line : picture) print(line + "\n");
}

void flush_output() {
  if (!unfinished_line.empty()) write_unfinished_line();
  if (!reader_is_gone) check(std::fflush(stdout) == 0);
}

void print_error(std::string_view message) {
  const bool colored = wants_color(stderr);
  print_to_stderr(str_format(
      "dckpt: {}{}\n", colored ? "\x1b[31merror:\x1b[0m " : "error: ", safe_message(message)));
}

void print_note(std::string_view message) {
  print_to_stderr(str_format("dckpt: {}\n", safe_message(message)));
}

void print_problem_count(std::size_t problems, const std::string& path, const std::string& first,
                         bool is_listed) {
  constexpr std::size_t kLongestPath = 1000;
  struct stat out {};
  struct stat err {};
  const bool is_seen = is_listed && fstat(fileno(stdout), &out) == 0 &&
                       fstat(fileno(stderr), &err) == 0 && out.st_dev == err.st_dev &&
                       out.st_ino == err.st_ino;
  flush_output();
  print_error(str_format("{} in {}{}", counted(problems, "problem"), quote(path, kLongestPath),
                         is_seen ? "" : ", the first: " + first));
}

void print_log(LogLevel level, std::string_view message) {
  if (level < LogLevel::kNotice || output_is == Output::kNone) return;
  const std::string kind = level == LogLevel::kError     ? "error: "
                           : level == LogLevel::kWarning ? "warning: "
                                                         : "";
  // Erases a progress line that may be there.
  const std::string lines = (is_terminal(stderr) ? "\r\x1b[K" : "") +
                            wrapped_lines(str_format("dckpt: {}{}\n", kind, safe_message(message)),
                                          columns_of_stream(stderr));
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

}  // namespace dckpt::tool
