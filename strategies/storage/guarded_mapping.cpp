#include "strategies/storage/guarded_mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace dckpt::posix {
namespace {

/// What a thread copies out of.
struct Guard {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  volatile bool failed = false;
};

thread_local Guard* volatile guarded = nullptr;
struct sigaction previous {};
std::uintptr_t page_size = 4096;

/// Zeros instead of the pages from `address` to the end; only what a signal handler may do.
bool replace_rest(Guard& guard, std::uintptr_t address) {
  const std::uintptr_t page = address & ~(page_size - 1);
  const long mapped = ::syscall(SYS_mmap, page, guard.end - page, PROT_READ,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  guard.failed = true;
  return mapped >= 0 || mapped < -4095;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Guard* const guard = guarded;
  if (guard != nullptr && info->si_code > 0 && address >= guard->begin && address < guard->end &&
      replace_rest(*guard, address)) {
    errno = error;
    return;
  }
  errno = error;
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  ::sigaction(SIGBUS, &previous, nullptr);  // the fault repeats, or the signal is sent again
  if (info->si_code <= 0) ::raise(signal);
}

bool install() {
  page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, nullptr, &previous) == 0 && ::sigaction(SIGBUS, &action, nullptr) == 0;
}

bool is_installed() {
  static const bool installed = install();
  struct sigaction now {};
  return installed && ::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
         now.sa_sigaction == on_bus_error;
}

/// Unmaps, and takes the guard away before.
struct Mapping {
  void* start;
  std::uint64_t length;
  Guard guard;
  ~Mapping() {
    guarded = nullptr;
    ::munmap(start, length);
  }
};

}  // namespace

bool with_mapped(int fd, std::uint64_t offset, std::uint64_t length,
                 const std::function<void(const std::byte*)>& copy) {
  if (length == 0 || guarded != nullptr || !is_installed()) return false;
  const std::uint64_t inset = offset % page_size;
  void* const start = ::mmap(nullptr, length + inset, PROT_READ, MAP_SHARED, fd,
                             static_cast<off_t>(offset - inset));
  if (start == MAP_FAILED) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(start);
  const std::uint64_t whole = (length + inset + page_size - 1) / page_size * page_size;
  Mapping mapping{start, length + inset, {begin, begin + whole}};
  guarded = &mapping.guard;
  copy(static_cast<const std::byte*>(start) + inset);
  return !mapping.guard.failed;
}

}  // namespace dckpt::posix
