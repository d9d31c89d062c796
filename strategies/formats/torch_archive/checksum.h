#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// CRC-32 as zip archives use it. Pass the result of the bytes before to go on: crc32(b, crc32(a))
/// is that of a and b together.
std::uint32_t crc32(ByteView bytes, std::uint32_t previous = 0) noexcept;

/// That of two pieces of bytes together, from theirs: crc32_combine(crc32(a), crc32(b), b.size())
/// is crc32(b, crc32(a)).
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_length) noexcept;

/// Bytes of a file that had this CRC-32 when they were written.
struct RecordedCrc {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
};

/// SHA-256 over bytes that arrive in pieces. Not for several threads at once.
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;

  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(ByteView bytes);
  /// The digest of everything so far; the object then starts anew.
  Digest finish();
  /// finish() as 64 lower-case hexadecimal digits.
  std::string finish_hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Two lower-case digits a byte.
std::string to_hex(ByteView bytes);

std::string sha256_hex(ByteView bytes);

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
