#pragma once

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace dckpt::testing {

/// What a terminal of this width gets from the built tool: stdout and stderr.
inline std::string run_on_terminal(std::vector<std::string> words, unsigned short columns,
                                   bool color = false) {
  winsize size{.ws_row = 40, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("no pseudo-terminal");
  if (child == 0) {
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
  std::string out;
  char some[4096];
  for (ssize_t count = 0; (count = ::read(terminal, some, sizeof some)) > 0;)
    out.append(some, static_cast<std::size_t>(count));
  ::close(terminal);
  ::waitpid(child, nullptr, 0);
  std::erase(out, '\r');
  return out;
}

}  // namespace dckpt::testing
