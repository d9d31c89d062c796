#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

/// CRC-32 as used by zip archives. To continue, pass the result for the preceding bytes: crc32(b,
/// crc32(a)) is the CRC of a and b together.
std::uint32_t crc32(ByteView bytes, std::uint32_t previous = 0) noexcept;

/// Returns the CRC of two concatenated pieces, given their CRCs: crc32_combine(crc32(a), crc32(b),
/// b.size()) is crc32(b, crc32(a)).
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second,
                            std::uint64_t second_length) noexcept;

/// A range of a file that had this CRC-32 when it was written.
struct RecordedCrc {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t crc = 0;
};

/// Throws CheckpointError (unsupported) in a build without OpenSSL, which computes no SHA-256.
void require_sha256();

/// SHA-256 over bytes that arrive in pieces. Not safe to use from several threads. Its constructor
/// throws as require_sha256() does.
class Sha256 {
 public:
  using Digest = std::array<std::byte, 32>;

  Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  ~Sha256();

  void update(ByteView bytes);
  /// Returns the digest of everything so far, and resets the object.
  Digest finish();
  /// Returns finish() as 64 lower-case hexadecimal digits.
  std::string finish_hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Returns two lower-case hexadecimal digits per byte.
std::string to_hex(ByteView bytes);

std::string sha256_hex(ByteView bytes);

}  // namespace dckpt
