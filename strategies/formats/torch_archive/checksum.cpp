#include "strategies/formats/torch_archive/checksum.h"

#include <openssl/evp.h>

#include <algorithm>
#include <new>

#ifdef DCKPT_HAVE_ISAL
#include <isa-l/crc.h>
#else
#include <zlib.h>
#endif

#include "mapping/base/error.h"

namespace dckpt {

std::uint32_t crc32(ByteView bytes, std::uint32_t previous) noexcept {
#ifdef DCKPT_HAVE_ISAL
  return ::crc32_gzip_refl(previous, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
#else
  return static_cast<std::uint32_t>(::crc32_z(previous, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
#endif
}

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
  void start() {
    if (evp == nullptr) throw std::bad_alloc();
    check(EVP_DigestInit_ex(evp, EVP_sha256(), nullptr));
  }
  static void check(int result) {
    if (result != 1) throw CheckpointError(ErrorCode::kUnsupported, "cannot compute SHA-256: the OpenSSL library of this system refuses it");
  }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) { context_->start(); }
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::update(ByteView bytes) { Context::check(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size())); }

Sha256::Digest Sha256::finish() {
  Digest digest;
  Context::check(EVP_DigestFinal_ex(context_->evp, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  context_->start();
  return digest;
}

std::string Sha256::finish_hex() { return to_hex(finish()); }

std::string to_hex(ByteView bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return text;
}

std::string sha256_hex(ByteView bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish_hex();
}

std::string file_sha256(const ReadableFile& file, const std::function<void(std::uint64_t)>& progress) {
  constexpr std::uint64_t kStep = std::uint64_t{4} << 20;
  Sha256 hash;
  Bytes buffer(static_cast<std::size_t>(std::min(file.size(), kStep)));
  for (std::uint64_t offset = 0; offset < file.size(); offset += kStep) {
    const MutableByteView step(buffer.data(), static_cast<std::size_t>(std::min(kStep, file.size() - offset)));
    file.read(offset, step);
    hash.update(step);
    if (progress) progress(step.size());
  }
  return hash.finish_hex();
}

}  // namespace dckpt
