#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// CRC-32 as zip archives use it. Pass the result of the bytes before to go on: crc32(b, crc32(a)) is that of a and b together.
std::uint32_t crc32(ByteView bytes, std::uint32_t previous = 0) noexcept;

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

/// The same of a whole file, which is read in steps; `progress` is told the bytes of each.
std::string file_sha256(const ReadableFile& file, const std::function<void(std::uint64_t)>& progress = {});

}  // namespace dckpt
