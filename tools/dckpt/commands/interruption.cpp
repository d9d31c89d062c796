#include "tools/dckpt/commands/interruption.h"

#include <unistd.h>

#include <cstring>
#include <string>
#include <system_error>

#include "mapping/base/error.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr int kFirstSignalExit = 128;

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Interruption::Interruption() {
  sigemptyset(&watched_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) sigaddset(&watched_, signal);
  }
  sigaddset(&watched_, SIGUSR2);  // wakes the watcher at the end
  ::pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  const timespec now{};
  if (const int pending = ::sigtimedwait(&watched_, nullptr, &now); pending > 0)
    ask_to_stop(pending);
  try {
    watcher_ = std::jthread([this] { watch(); });
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    print_note(
        str_format("no thread could be started ({}): the command runs with this one only, and a "
                   "signal ends it at once without removing what it has written",
                   error.what()));
  }
}

Interruption::~Interruption() {
  if (!watcher_.joinable()) return;
  over_ = true;
  ::pthread_kill(watcher_.native_handle(), SIGUSR2);
  watcher_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interruption::watch() {
  for (int signal = 0; ::sigwait(&watched_, &signal) == 0 && !over_;) {
    if (signal == SIGUSR2) continue;
    ask_to_stop(signal);
  }
}

void Interruption::ask_to_stop(int signal) {
  if (signal_.exchange(signal) != 0) ::_exit(kFirstSignalExit + signal);
  source_.request_stop();
}

int Interruption::run(const std::function<int()>& command) {
  try {
    return command();
  } catch (const CheckpointError& error) {
    if (signal_ == 0) throw;
    print_error(str_format("stopped by a signal ({}): {}", ::strsignal(signal_), error.message()));
    return kFirstSignalExit + signal_;
  }
}

}  // namespace dckpt::tool
