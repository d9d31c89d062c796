// A kernel may interrupt any read or write by a signal before the first byte (EINTR), or transfer
// less than requested. The functions that this program defines replace the C library's, and do both
// in turn.

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "mapping/base/parallel_for.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/uncached_file.h"
#include "tests/support/temp_dir.h"

namespace {

// While enabled, every third call is interrupted, and the others transfer at most `most` bytes.
std::atomic<std::size_t> most{0};  // 0: off
std::atomic<int> calls{0};
std::atomic<int> interrupted{0};
std::atomic<int> shortened{0};

bool interrupts() {
  if (most == 0 || ++calls % 3 != 0) return false;
  ++interrupted;
  errno = EINTR;
  return true;
}

std::size_t allowed(std::size_t asked) {
  if (most == 0 || asked <= most) return asked;
  ++shortened;
  return most;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* into, std::size_t size, off_t offset) {
  if (interrupts()) return -1;
  return ::syscall(SYS_pread64, fd, into, allowed(size), offset);
}
ssize_t pread64(int fd, void* into, std::size_t size, off64_t offset) {
  return pread(fd, into, size, offset);
}

ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  if (interrupts()) return -1;
  if (most == 0 || count == 0) return ::syscall(SYS_pwritev, fd, parts, count, offset, 0);
  const iovec part{parts->iov_base, allowed(parts->iov_len)};
  if (count > 1) ++shortened;
  return ::syscall(SYS_pwritev, fd, &part, 1, offset, 0);
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off64_t offset) {
  return pwritev(fd, parts, count, offset);
}

}  // extern "C"

namespace dckpt::interrupted_calls_test {
namespace {

/// Makes the calls of the test misbehave during its lifetime.
class BadCalls {
 public:
  explicit BadCalls(std::size_t bytes) {
    calls = interrupted = shortened = 0;
    most = bytes;
  }
  BadCalls(const BadCalls&) = delete;
  BadCalls& operator=(const BadCalls&) = delete;
  ~BadCalls() { most = 0; }
};

Bytes content_of(std::size_t size) {
  Bytes content(size);
  for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<std::byte>(i * 37 >> 4);
  return content;
}

void write_in_sections(WritableFile& file, ByteView content) {
  constexpr std::size_t kSections = 4;
  parallel_for(kSections, 2, [&](std::size_t i) {
    const std::size_t begin = content.size() * i / kSections;
    const std::size_t end = content.size() * (i + 1) / kSections;
    const auto section = file.section(begin);
    const std::size_t middle = (begin + end) / 2;
    section->append(
        std::vector{content.subspan(begin, middle - begin), content.subspan(middle, end - middle)});
    section->close();
  });
}

TEST(InterruptedCallsTest, EveryByteIsWrittenAndReadAllTheSame) {
  const TempDir root;
  const auto storage = posix_storage(root.path());
  const Bytes content = content_of((std::size_t{9} << 20) + 321);
  for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
    // Sizes of whole pages, and one that leaves a direct writer at an offset where it cannot
    // continue.
    for (const std::size_t bytes : {std::size_t{256} << 10, std::size_t{100'001}}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(engine)) + " " + std::to_string(bytes));
      const BadCalls bad(bytes);
      const auto file =
          storage->create("a", {.size_hint = content.size(), .durable = true, .engine = engine});
      write_in_sections(*file, content);
      file->sync();
      file->close();
      EXPECT_GT(interrupted, 0);
      EXPECT_GT(shortened, 0);

      interrupted = shortened = 0;
      Bytes read(content.size());
      storage->open("a")->read(0, read);
      EXPECT_TRUE(read == content);
      EXPECT_GT(interrupted, 0);
      EXPECT_GT(shortened, 0);

      Bytes past_cache;
      const auto opened = storage->open("a");
      const bool can = dynamic_cast<const UncachedFile&>(*opened).read_past_cache(
          1, content.size() - 1,
          [&](ByteView part) { past_cache.insert(past_cache.end(), part.begin(), part.end()); });
      EXPECT_TRUE(!can || std::ranges::equal(past_cache, ByteView(content).subspan(1)));
      storage->remove_all("a");
    }
  }
}

}  // namespace
}  // namespace dckpt::interrupted_calls_test
