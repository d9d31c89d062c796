#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "mapping/base/api.h"
#include "mapping/base/hash.h"
#include "mapping/base/readable_file.h"

namespace DCKPT_API dckpt {

/// The SHA-256 of a file, computed from bytes that are read for other purposes, as far as these
/// reads proceed from front to back. The rest is read at the end. Safe to use from several threads.
class PassingHash {
 public:
  /// Adds bytes that were read at `offset`. A short gap before them is read from `file`.
  void add(const ReadableFile& file, std::uint64_t offset, ByteView bytes);

  /// Returns the hash of the whole file, as in sha256_hex().
  std::string finish_hex(const ReadableFile& file);

 private:
  void hash_up_to(const ReadableFile& file, std::uint64_t end);

  std::mutex mutex_;
  Sha256 hash_;
  std::uint64_t hashed_ = 0;  ///< number of bytes from the front
};

/// A file whose reads are added to a hash, which must outlive it.
class HashedFile final : public ReadableFile {
 public:
  HashedFile(std::shared_ptr<const ReadableFile> file, PassingHash& hash)
      : file_(std::move(file)), hash_(hash) {}

  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    file_->read(offset, into);
    hash_.add(*file_, offset, into);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_->prefetch(offset, length);
  }

 private:
  std::shared_ptr<const ReadableFile> file_;
  PassingHash& hash_;
};

/// Returns the same hash of a whole file, which is read in steps.
std::string file_sha256(const ReadableFile& file);

}  // namespace dckpt
