#pragma once

#include <memory>
#include <string>

#include "mapping/base/file_descriptor.h"
#include "strategies/storage/storage.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Locks the file `entry` of an open directory, as Storage::lock specifies, with an advisory lock
/// (flock). The system releases it when the holder's process ends, however it ends. A child process
/// forked while the lock was held keeps it until the child ends as well. The file is created if it
/// is missing, `owner` replaces its content, and it stays. A holder may remove it before releasing
/// the lock. `path` is its name for messages, `absolute` the path by which others find it.
std::unique_ptr<StorageLock> lock_file(const Fd& directory, const std::string& entry,
                                       const std::string& path, const std::string& absolute,
                                       const std::string& owner);

}  // namespace dckpt::posix
