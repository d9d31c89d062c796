#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "mapping/base/fields.h"
#include "strategies/storage/storage.h"

namespace dckpt {

struct FileDigest {
  std::string sha256;  ///< as in sha256_hex()
  std::uint64_t size = 0;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
  friend auto operator<=>(const FileDigest&, const FileDigest&) = default;
};
constexpr auto fields(const FileDigest*) {
  return std::tuple(Field(&FileDigest::sha256), Field(&FileDigest::size));
}

/// The digests of written files, by their names. Safe to use from several threads.
class FileDigests {
 public:
  void add(const std::string& name, FileDigest digest);
  /// Renames the digest of a file, or of all files in a directory. remove() forgets them.
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& name);
  /// Returns the digests of files in `directory`, by their names in it.
  std::map<std::string, FileDigest> in(const std::string& directory) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, FileDigest> digests_;
};

/// Passes everything through to `storage` and hashes the bytes of each created file on their way.
/// `digests` gets the digest of a file when it is closed.
std::shared_ptr<Storage> hashing_storage(std::shared_ptr<Storage> storage,
                                         std::shared_ptr<FileDigests> digests);

}  // namespace dckpt
