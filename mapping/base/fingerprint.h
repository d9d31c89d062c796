#pragma once

#include <cstdint>
#include <memory>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

/// An XXH3-128 hash, with which ranks find out whether they hold the same data: fast and the same
/// everywhere, but no protection against forgery (see Sha256).
struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

Fingerprint fingerprint_of(ByteView bytes) noexcept;

/// Computes the fingerprint of bytes that arrive in pieces, however they are cut.
class Fingerprinter {
 public:
  Fingerprinter();
  ~Fingerprinter();
  Fingerprinter(const Fingerprinter&) = delete;
  Fingerprinter& operator=(const Fingerprinter&) = delete;

  void update(ByteView bytes) noexcept;
  /// Returns the fingerprint of everything so far.
  Fingerprint value() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dckpt
