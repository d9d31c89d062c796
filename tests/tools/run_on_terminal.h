#pragma once

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dckpt::testing {

/// Returns the text without erased progress lines, whose number depends on timing.
inline std::string what_stays(std::string text) {
  constexpr std::string_view kWipe = "\r\x1b[K";
  for (std::size_t wipe = 0; (wipe = text.find(kWipe)) != std::string::npos;) {
    const std::size_t line = text.rfind('\n', wipe);
    const std::size_t begin = line == std::string::npos ? 0 : line + 1;
    text.erase(begin, wipe + kWipe.size() - begin);
  }
  std::erase(text, '\r');
  return text;
}

/// Returns what a terminal of this width shows once the built tool has ended.
inline std::string run_on_terminal(std::vector<std::string> words, unsigned short columns,
                                   bool color = false) {
  winsize size{.ws_row = 40, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  int tools_end = -1;
  if (::openpty(&terminal, &tools_end, nullptr, nullptr, &size) != 0)
    throw std::runtime_error("no pseudo-terminal");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(terminal);
    ::login_tty(tools_end);
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    if (color)
      ::unsetenv("NO_COLOR");
    else
      ::setenv("NO_COLOR", "1", 1);
    words.insert(words.begin(), DCKPT_TOOL);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::execv(DCKPT_TOOL, arguments.data());
    ::_exit(127);
  }
  // The tool's end of the terminal stays open here: a terminal may lose unread output when its last
  // user closes it.
  std::string out;
  char some[4096];
  pollfd readable{.fd = terminal, .events = POLLIN, .revents = 0};
  for (bool ended = false; child > 0;) {
    if (::poll(&readable, 1, 50) > 0) {
      const ssize_t count = ::read(terminal, some, sizeof some);
      out.append(some, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    } else if (ended) {
      break;
    } else {
      ended = ::waitpid(child, nullptr, WNOHANG) == child;
    }
  }
  ::close(tools_end);
  ::close(terminal);
  return what_stays(std::move(out));
}

}  // namespace dckpt::testing
