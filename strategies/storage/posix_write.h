#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "strategies/storage/posix_fd.h"

// Internal to the POSIX storage; not installed. The common parts of its two kinds of written files.
namespace dckpt::posix {

/// The effect of reserving blocks on a file: it keeps its size, or gets the size of all blocks.
/// ext4 and XFS let several threads write at once only before the end of a file.
enum class Reserved : std::uint8_t { kBlocks, kSize };

/// Reserves blocks for an empty file. Returns the number of bytes reserved: 0 if that is not worth
/// it or the file system cannot do it. Throws CheckpointError (io) if they do not fit.
std::uint64_t reserve(const Fd& fd, const std::string& path, std::uint64_t bytes, Reserved what);

/// Writes the parts, fewer than IOV_MAX, one after the other from `offset`, and advances `offset`
/// past the bytes written. Consumes `parts`. Returns 0, or errno.
int write_parts(const Fd& fd, std::span<iovec> parts, std::uint64_t& offset);

/// Returns an error "cannot write … bytes", with the available space on a full disk.
CheckpointError write_error(const Fd& fd, const std::string& path, std::uint64_t bytes, int error,
                            std::uint64_t offset);

void sync_file(const Fd& fd, const std::string& path);

/// Releases the blocks reserved beyond the first `size` bytes.
void give_back(const Fd& fd, const std::string& path, std::uint64_t size, std::uint64_t reserved);

void close_file(Fd& fd, const std::string& path);

/// Returns a new, empty file that is written through the page cache.
std::unique_ptr<WritableFile> buffered_file(Fd fd, std::string path, const CreateOptions& options);

/// Returns the same past the page cache; `fd` was opened with O_DIRECT.
std::unique_ptr<WritableFile> direct_file(Fd fd, std::string path, const CreateOptions& options);

}  // namespace dckpt::posix
