#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mapping/base/hash.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// A file whose SHA-256 is made of what others read of it, as far as they go through it from front
/// to back; the rest is read at the end. For one thread.
class HashedFile final : public ReadableFile {
 public:
  explicit HashedFile(const ReadableFile& file) : file_(file) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override { return file_.size(); }
  void read(std::uint64_t offset, MutableByteView into) const override;
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_.prefetch(offset, length);
  }

  /// Of the whole file, as in sha256_hex().
  std::string finish_hex();

 private:
  void hash_up_to(std::uint64_t end) const;

  const ReadableFile& file_;
  mutable Sha256 hash_;
  mutable std::uint64_t hashed_ = 0;  ///< bytes from the front
};

/// The same of a whole file, which is read in steps; `progress` is told the bytes of each.
std::string file_sha256(const ReadableFile& file,
                        const std::function<void(std::uint64_t)>& progress = {});

}  // namespace dckpt
