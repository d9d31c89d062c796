#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace dckpt {

/// A file that one holder has at a time: an advisory lock (flock), which the system releases when
/// the holder's process ends, however it ends. Excludes other holders in this process too. A child
/// process that was forked while it was held keeps it until it ends as well.
class FileLock {
 public:
  /// Creates the file if it is missing and takes the lock without waiting. Its content becomes
  /// `owner`, which says for people who has it. Throws CheckpointError: (aborted) if it is taken,
  /// with what the owner wrote; (unsupported) where the file system has no such locks;
  /// (corrupt) if the path is a link or no regular file; (io).
  FileLock(const std::filesystem::path& file, const std::string& owner);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace dckpt
