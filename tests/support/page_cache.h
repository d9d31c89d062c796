#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <vector>

namespace dckpt::testing {

/// Drops a file from the page cache.
inline void drop_from_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  ::fsync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

/// Returns the number of pages of a file in the page cache.
inline std::size_t cached_pages(const std::filesystem::path& path) {
  const auto size = std::filesystem::file_size(path);
  const int fd = ::open(path.c_str(), O_RDONLY);
  void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((size + page - 1) / page);
  ::mincore(mapping, size, there.data());
  ::munmap(mapping, size);
  std::size_t count = 0;
  for (const unsigned char pages : there) count += pages & 1;
  return count;
}

/// Returns whether the storage reads such files past the page cache: on ext4 and XFS, if the kernel
/// reports what is cached.
inline bool can_be_cold(const std::filesystem::path& path) {
  struct statfs system {};
  if (::statfs(path.c_str(), &system) != 0) return false;
  const bool local = system.f_type == 0xEF53 || system.f_type == 0x58465342;
  struct {
    unsigned long long offset = 0, length = 1;
  } range;
  unsigned long long counts[5];
  const int fd = ::open(path.c_str(), O_RDONLY);
  const bool tells = ::syscall(451, fd, &range, counts, 0) == 0;  // cachestat
  ::close(fd);
  return local && tells;
}

}  // namespace dckpt::testing
