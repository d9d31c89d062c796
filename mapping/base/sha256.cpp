#include <openssl/evp.h>

#include <new>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"

namespace dckpt {

void require_sha256() {}

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
  void start() {
    if (evp == nullptr) throw std::bad_alloc();
    check(EVP_DigestInit_ex(evp, EVP_sha256(), nullptr));
  }
  static void check(int result) {
    if (result != 1)
      throw_error(ErrorCode::kUnsupported,
                  "cannot compute SHA-256: the OpenSSL library of this system refuses it");
  }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  context_->start();
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(ByteView bytes) {
  Context::check(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()));
}

Sha256::Digest Sha256::finish() {
  Digest digest;
  Context::check(
      EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  context_->start();
  return digest;
}

std::string Sha256::finish_hex() {
  return to_hex(finish());
}

}  // namespace dckpt
