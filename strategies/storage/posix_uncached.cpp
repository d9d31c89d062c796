// Reading past the page cache (O_DIRECT): whole pages are read into a block of huge pages, from
// which the wanted bytes are handed over. Copying them costs less than filling the page cache and
// emptying it later.

#include "strategies/storage/posix_uncached.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/storage/direct_io.h"

namespace dckpt::posix {
namespace {

// The number of cachestat(2), which older C libraries do not declare.
constexpr long kCachestat = 451;
struct CacheRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct CacheCounts {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

/// Reads up to `size` bytes; fewer at the end of the file, or where direct reading cannot continue.
/// Returns the number of bytes, or -errno if there are none.
std::int64_t read_block(const Fd& fd, std::byte* into, std::size_t size, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size && done % kDirectAlignment == 0) {
    const ssize_t got =
        ::pread(fd.get(), into + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && done == 0) return -errno;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

bool is_cold(const Fd& fd, std::uint64_t offset, std::uint64_t length) noexcept {
  CacheRange range{offset, length};
  CacheCounts counts{};
  if (length == 0 || ::syscall(kCachestat, fd.get(), &range, &counts, 0) != 0) return false;
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return counts.cached <= length / page / 4;
}

bool UncachedDescriptor::read(const ReadableFile& file, const Fd& fd, std::uint64_t offset,
                              std::uint64_t length,
                              const std::function<void(ByteView)>& take) const {
  std::call_once(opened_, [&] {
    direct_ = Fd(
        ::open(str_format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  });
  if (!direct_) return false;
  const HugeBlock::Taken block = HugeBlock::take();
  const std::uint64_t end = offset + length;
  for (std::uint64_t at = offset; at < end;) {
    const std::uint64_t inset = at % kDirectAlignment;
    const std::uint64_t pages =
        (inset + end - at + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    const std::int64_t got = read_block(
        direct_, block->memory(), std::min<std::uint64_t>(pages, HugeBlock::kSize), at - inset);
    if (got == -EINVAL && at == offset) return false;  // a larger alignment is required
    if (got < 0 && got != -EINVAL)
      throw system_error(str_format("cannot read {} bytes", grouped(end - at)),
                         static_cast<int>(-got), file.name())
          .with({.offset = at});
    const std::uint64_t there = got < 0 ? 0 : static_cast<std::uint64_t>(got);
    const bool stopped = there <= inset;
    const std::uint64_t count =
        std::min<std::uint64_t>(stopped ? HugeBlock::kSize : there - inset, end - at);
    std::byte* const wanted = block->memory() + (stopped ? 0 : inset);
    if (stopped) file.read(at, {wanted, count});  // continues from here, or throws the reason
    take({wanted, count});
    at += count;
  }
  return true;
}

}  // namespace dckpt::posix
