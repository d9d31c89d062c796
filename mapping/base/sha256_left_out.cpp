// This file takes the place of sha256.cpp in a build without OpenSSL.

#include "mapping/base/error.h"
#include "mapping/base/hash.h"

namespace dckpt {

void require_sha256() {
  throw_error(
      ErrorCode::kUnsupported,
      "SHA-256 (save.integrity, load.verify: sha256) needs OpenSSL, without which this dckpt was "
      "built; build it with -DDCKPT_OPENSSL=ON");
}

struct Sha256::Context {};

Sha256::Sha256() {
  require_sha256();
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(ByteView) {}

Sha256::Digest Sha256::finish() {
  return {};
}

std::string Sha256::finish_hex() {
  return "";
}

}  // namespace dckpt
