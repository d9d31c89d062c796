#include "strategies/storage/guarded_mapping.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "strategies/storage/mapped_reads.h"

namespace dckpt {
namespace {

std::atomic<bool> allowed_to_map{true};

}  // namespace

void allow_mapped_reads(bool allowed) noexcept {
  allowed_to_map = allowed;
}

bool mapped_reads_allowed() noexcept {
  return allowed_to_map;
}

}  // namespace dckpt

namespace dckpt::posix {
namespace {

/// The memory that a thread copies from.
struct Guard {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  volatile bool failed = false;
};

thread_local Guard* volatile guarded = nullptr;
struct sigaction previous {};
constexpr std::uintptr_t kSmallPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;  // with small pages of 4 KiB
std::uintptr_t page_size = kSmallPage;

/// Maps zeros in place of the pages from `address` to the end. Async-signal-safe.
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

/// Returns whether faults read whole huge pages where MADV_HUGEPAGE asks for it (Linux 5.18).
bool faults_read_huge_pages() {
  utsname system{};
  int major = 0;
  int minor = 0;
  return page_size == kSmallPage && ::uname(&system) == 0 &&
         std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         (major > 5 || (major == 5 && minor >= 18));
}

/// Makes the page cache read missing parts of a mapping in huge pages, with one request for each,
/// if the file system has such pages. One entry maps each of them; mapping the small pages that
/// read-ahead leaves takes longer than the copy. MADV_RANDOM turns read-ahead off.
void use_huge_pages(void* start, std::uint64_t bytes) {
  static const bool supported = faults_read_huge_pages();
  if (supported && ::madvise(start, bytes, MADV_HUGEPAGE) == 0)
    ::madvise(start, bytes, MADV_RANDOM);
}

/// Unblocks SIGBUS for this thread during the lifetime of the object: a fault while it is blocked
/// kills the process, and trainers block all signals in the threads that compute.
class DeliveredBusErrors {
 public:
  DeliveredBusErrors() {
    ::sigemptyset(&bus_error_);
    ::sigaddset(&bus_error_, SIGBUS);
    ::pthread_sigmask(SIG_UNBLOCK, &bus_error_, &before_);
  }
  ~DeliveredBusErrors() {
    if (::sigismember(&before_, SIGBUS) == 1) ::pthread_sigmask(SIG_BLOCK, &bus_error_, nullptr);
  }
  DeliveredBusErrors(const DeliveredBusErrors&) = delete;
  DeliveredBusErrors& operator=(const DeliveredBusErrors&) = delete;

 private:
  sigset_t bus_error_{};
  sigset_t before_{};
};

/// Returns true if a SIGBUS that somebody sent waits until the program takes it.
bool one_is_pending() {
  sigset_t pending{};
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGBUS) == 1;
}

/// Clears the guard and then unmaps, when destroyed.
struct Mapping {
  void* start;
  std::uint64_t length;
  Guard guard;
  DeliveredBusErrors delivered{};
  ~Mapping() {
    guarded = nullptr;
    ::munmap(start, length);
  }
};

}  // namespace

bool with_mapped(int fd, std::uint64_t offset, std::uint64_t length,
                 const std::function<void(const std::byte*)>& copy) {
  if (length == 0 || !mapped_reads_allowed() || guarded != nullptr || !is_installed() ||
      one_is_pending())
    return false;
  const bool huge = length >= kHugePage / 2;
  const std::uint64_t unit = huge ? kHugePage : page_size;
  const std::uint64_t inset = offset % unit;
  const std::uint64_t whole = (length + inset + unit - 1) / unit * unit;
  void* const start =
      ::mmap(nullptr, whole, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset - inset));
  if (start == MAP_FAILED) return false;
  if (huge) use_huge_pages(start, whole);
  const auto begin = reinterpret_cast<std::uintptr_t>(start);
  Mapping mapping{start, whole, {begin, begin + whole}};
  guarded = &mapping.guard;
  copy(static_cast<const std::byte*>(start) + inset);
  return !mapping.guard.failed;
}

}  // namespace dckpt::posix
