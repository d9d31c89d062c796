#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "mapping/base/readable_file.h"
#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Returns whether at most a quarter of the range is in the page cache, by cachestat(2), which
/// Linux has since 6.5. False if that is unknown.
bool is_cold(const Fd& fd, std::uint64_t offset, std::uint64_t length) noexcept;

/// A second descriptor of an open file that reads past the page cache. Safe to use from several
/// threads.
class UncachedDescriptor {
 public:
  /// Implements UncachedFile::read_past_cache for `file`, whose descriptor is `fd`. The range must
  /// lie in the file.
  bool read(const ReadableFile& file, const Fd& fd, std::uint64_t offset, std::uint64_t length,
            const std::function<void(ByteView)>& take) const;

 private:
  mutable std::once_flag opened_;
  mutable Fd direct_;
};

}  // namespace dckpt::posix
