#include "tools/dckpt/terminal.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

bool reader_is_gone = false;  // stdout is a pipe that nobody reads any more

void check(bool ok) {
  if (ok) return;
  if (errno == EPIPE) {
    reader_is_gone = true;
    return;
  }
  throw CheckpointError(ErrorCode::kIo,
                        std::string("cannot write to standard output: ") + std::strerror(errno));
}

void print_to_stderr(const std::string& line) {
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  return isatty(fileno(stream)) == 1;
}

bool wants_colour(std::FILE* stream) {
  const char* const no_colour = std::getenv("NO_COLOR");
  const char* const term = std::getenv("TERM");
  return is_terminal(stream) && (no_colour == nullptr || *no_colour == '\0') && term != nullptr &&
         std::strcmp(term, "dumb") != 0;
}

std::string styled(Style style, std::string_view text) {
  static const bool coloured = wants_colour(stdout);
  if (!coloured) return std::string(text);
  static constexpr const char* kCodes[] = {"1", "2", "31", "32", "33"};
  return str_format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<int>(style)], text);
}

std::string shown(std::string_view text) {
  return printable(text, text.size());
}

std::string safe_message(std::string_view text) {
  // printable escapes backslashes and line breaks, which the message already uses for what it
  // quotes and for its layout; so it gets the text between them.
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
  if (!reader_is_gone) check(std::fwrite(data, 1, size, stdout) == size);
}

void print(std::string_view text) {
  print_bytes(text.data(), text.size());
}

void flush_output() {
  if (!reader_is_gone) check(std::fflush(stdout) == 0);
}

void print_error(std::string_view message) {
  const bool coloured = wants_colour(stderr);
  print_to_stderr(str_format(
      "dckpt: {}{}\n", coloured ? "\x1b[31merror:\x1b[0m " : "error: ", safe_message(message)));
}

void print_note(std::string_view message) {
  print_to_stderr(str_format("dckpt: {}\n", safe_message(message)));
}

}  // namespace dckpt::tool
