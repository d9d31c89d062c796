#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "strategies/storage/storage.h"

namespace dckpt {

struct FileDigest {
  std::string sha256;  ///< as in sha256_hex()
  std::uint64_t size = 0;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
  friend auto operator<=>(const FileDigest&, const FileDigest&) = default;
};

/// The digests of files that were written, by their names. Safe to use from several threads.
class FileDigests {
 public:
  void add(const std::string& name, FileDigest digest);
  /// Of a file, or of all files in a directory, that has another name now, or is gone.
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& name);
  /// Those of files in `directory`, by their names in it.
  std::map<std::string, FileDigest> in(const std::string& directory) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FileDigest> digests_;
};

/// Passes everything through to `storage`; the bytes of each file that is created are hashed on
/// their way, and `digests` has its digest once it is closed.
std::shared_ptr<Storage> hashing_storage(std::shared_ptr<Storage> storage,
                                         std::shared_ptr<FileDigests> digests);

}  // namespace dckpt
