#include "mapping/base/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dckpt {

struct Fingerprinter::State {
  XXH3_state_t xxh{};
};

Fingerprint fingerprint_of(ByteView bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

Fingerprinter::Fingerprinter() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

Fingerprinter::~Fingerprinter() = default;

void Fingerprinter::update(ByteView bytes) noexcept {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

Fingerprint Fingerprinter::value() const noexcept {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.low64, hash.high64};
}

}  // namespace dckpt
