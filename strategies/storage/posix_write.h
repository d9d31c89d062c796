#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed. What its two kinds of written files have in common.
namespace dckpt::posix {

/// Whether a file keeps its size when blocks are set aside, or has the size of all of them:
/// ext4 and XFS let several threads write at once only before the end of a file.
enum class Reserved : std::uint8_t { kBlocks, kSize };

/// Sets blocks aside for an empty file. Returns how many bytes: 0 where that is not worth it or the
/// file system does not do it. Throws CheckpointError (io) if they do not fit.
std::uint64_t reserve(const Fd& fd, const std::string& path, std::uint64_t bytes, Reserved what);

/// Writes the parts, fewer than IOV_MAX, one after the other from `offset`, which moves with what
/// has been written. `parts` is used up. Returns 0, or errno.
int write_parts(const Fd& fd, std::span<iovec> parts, std::uint64_t& offset);

/// "cannot write … bytes", with what is available on a full disk.
CheckpointError write_error(const Fd& fd, const std::string& path, std::uint64_t bytes, int error,
                            std::uint64_t offset);

void sync_file(const Fd& fd, const std::string& path);

/// Gives the blocks back that were reserved and are not used by the first `size` bytes.
void give_back(const Fd& fd, const std::string& path, std::uint64_t size, std::uint64_t reserved);

void close_file(Fd& fd, const std::string& path);

/// A new, empty file, written through the page cache.
std::unique_ptr<WritableFile> buffered_file(Fd fd, std::string path, const CreateOptions& options);

/// The same past the page cache; `fd` was opened with O_DIRECT.
std::unique_ptr<WritableFile> direct_file(Fd fd, std::string path, const CreateOptions& options);

}  // namespace dckpt::posix
