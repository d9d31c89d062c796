#pragma once

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace dckpt::testing {

/// A forked copy of this process that runs `body` and ends with 0, or 1 if it throws. The
/// destructor kills it. Only one may exist at a time, while no other threads run.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& body) : id_(::fork()) {
    if (id_ < 0) throw std::runtime_error("cannot fork");
    if (id_ > 0) return;
    try {
      body();
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child process: %s\n", error.what());
      ::_exit(1);
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { kill(); }

  pid_t id() const noexcept { return id_; }
  bool ended() const noexcept { return id_ == 0; }
  /// Waits for the next event of the process, or of one of its threads if they are traced. Returns
  /// the thread and its status.
  std::pair<pid_t, int> next_event() {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0 || (thread == id_ && !WIFSTOPPED(status))) id_ = 0;
    return {thread, status};
  }
  /// Waits for the end. Returns the exit code, or minus the signal.
  int wait() {
    int status = 0;
    while (!ended()) status = next_event().second;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill() {
    if (ended()) return;
    ::kill(id_, SIGKILL);
    wait();
  }

 private:
  pid_t id_;
};

/// Returns whether a system call changes files.
inline bool changes_files(const __ptrace_syscall_info& call) {
  constexpr std::array kCalls = {SYS_mkdirat,   SYS_renameat2, SYS_unlinkat, SYS_fsync,
                                 SYS_fdatasync, SYS_write,     SYS_pwrite64, SYS_writev,
                                 SYS_pwritev,   SYS_ftruncate, SYS_fallocate};
  const auto number = static_cast<long>(call.entry.nr);
  return std::ranges::find(kCalls, number) != kCalls.end() ||
         (number == SYS_openat && (call.entry.args[2] & O_CREAT) != 0);
}

enum class Ended { kKilled, kFinished, kFailed, kNotTraceable };

/// Runs `body` in a child process and kills it before its `number`-th system call that changes
/// files, in any of its threads, counted from 1 after `body` has called its argument.
inline Ended killed_at(std::uint64_t number,
                       const std::function<void(const std::function<void()>& start)>& body) {
  ChildProcess child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    body([] { ::raise(SIGSTOP); });
  });
  auto [thread, status] = child.next_event();
  if (child.ended())
    return WIFEXITED(status) && WEXITSTATUS(status) == 77 ? Ended::kNotTraceable : Ended::kFailed;
  const auto options = PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE;
  if (::ptrace(PTRACE_SETOPTIONS, thread, nullptr, options) != 0) return Ended::kNotTraceable;
  for (std::uint64_t calls = 0;;) {
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, nullptr);
    std::tie(thread, status) = child.next_event();
    if (child.ended())
      return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? Ended::kFinished : Ended::kFailed;
    __ptrace_syscall_info call{};
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80) ||
        ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof call, &call) <= 0)
      continue;
    if (call.op == PTRACE_SYSCALL_INFO_ENTRY && changes_files(call) && ++calls == number)
      return Ended::kKilled;  // the destructor kills it
  }
}

}  // namespace dckpt::testing
