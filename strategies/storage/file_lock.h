#pragma once

#include <memory>
#include <string>

#include "mapping/base/file_descriptor.h"
#include "strategies/storage/storage.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Locks the file `entry` of an open directory, as Storage::lock says: an advisory lock (flock),
/// which the system releases when the holder's process ends, however it ends. A child process that
/// was forked while it was held keeps it until it ends as well. The file is created if it is
/// missing, its content becomes `owner`, and it stays. A holder may remove it before letting go.
/// `path` is its name for messages, `absolute` where others look for it.
std::unique_ptr<StorageLock> lock_file(const Fd& directory, const std::string& entry,
                                       const std::string& path, const std::string& absolute,
                                       const std::string& owner);

}  // namespace dckpt::posix
