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

namespace dckpt::testing {

/// A forked copy of this process that runs `body` and ends with 0, or 1 if it throws. Killed with its owner. Fork only while no other threads run.
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
  /// The exit code, or minus the signal.
  int wait() {
    int status = 0;
    if (id_ > 0) ::waitpid(id_, &status, 0);
    id_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    wait();
  }

 private:
  pid_t id_;
};

/// Whether a system call changes files.
inline bool changes_files(const __ptrace_syscall_info& call) {
  constexpr std::array kCalls = {SYS_mkdirat, SYS_renameat2, SYS_unlinkat, SYS_fsync, SYS_fdatasync, SYS_write, SYS_pwrite64, SYS_writev, SYS_pwritev, SYS_ftruncate, SYS_fallocate};
  const auto number = static_cast<long>(call.entry.nr);
  return std::ranges::find(kCalls, number) != kCalls.end() || (number == SYS_openat && (call.entry.args[2] & O_CREAT) != 0);
}

enum class Ended { kKilled, kFinished, kFailed, kNotTraceable };

/// Runs `body` in a child process and kills it before its `number`-th system call that changes files, counted from 1 after `body` has called its argument.
inline Ended killed_at(std::uint64_t number, const std::function<void(const std::function<void()>& start)>& body) {
  ChildProcess child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    body([] { ::raise(SIGSTOP); });
  });
  int status = 0;
  ::waitpid(child.id(), &status, 0);
  if (WIFEXITED(status)) return WEXITSTATUS(status) == 77 ? Ended::kNotTraceable : Ended::kFailed;
  if (::ptrace(PTRACE_SETOPTIONS, child.id(), nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) return Ended::kNotTraceable;
  for (std::uint64_t calls = 0;;) {
    if (::ptrace(PTRACE_SYSCALL, child.id(), nullptr, nullptr) != 0 || ::waitpid(child.id(), &status, 0) != child.id()) return Ended::kFailed;
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 0 ? Ended::kFinished : Ended::kFailed;
    if (WIFSIGNALED(status)) return Ended::kFailed;
    __ptrace_syscall_info call{};
    if (WSTOPSIG(status) != (SIGTRAP | 0x80) || ::ptrace(PTRACE_GET_SYSCALL_INFO, child.id(), sizeof call, &call) <= 0) continue;
    if (call.op == PTRACE_SYSCALL_INFO_ENTRY && changes_files(call) && ++calls == number) return Ended::kKilled;  // by the destructor
  }
}

}  // namespace dckpt::testing
