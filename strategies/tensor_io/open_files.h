#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "mapping/base/readable_file.h"

namespace dckpt {

/// The data files of one read. Each is open from its first job to its last: a checkpoint of
/// thousands of ranks has more files than a process may open. Safe to share between threads, except
/// for expect() and close().
class OpenFiles {
 public:
  /// Opens the file at position `file` in Metadata::files.
  using Open = std::function<std::unique_ptr<ReadableFile>(std::uint32_t file)>;
  explicit OpenFiles(Open open) : open_(std::move(open)) {}

  /// Announces one more job that will call get() and done() for the file.
  void expect(std::uint32_t file) { ++files_[file].jobs; }
  std::shared_ptr<const ReadableFile> get(std::uint32_t file);
  void done(std::uint32_t file);

  void close() { files_.clear(); }
  /// Bytes read from files that are closed.
  std::uint64_t bytes_read() const noexcept { return bytes_read_; }
  /// The part of bytes_read() that was read past the page cache.
  std::uint64_t bytes_direct() const noexcept { return bytes_direct_; }

 private:
  struct Entry {
    std::shared_ptr<const ReadableFile> file;
    std::size_t jobs = 0;
  };

  Open open_;
  std::mutex mutex_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<std::uint64_t> bytes_direct_ = 0;
  std::map<std::uint32_t, Entry> files_;  // destroyed before the counters, which its files update
};

}  // namespace dckpt
