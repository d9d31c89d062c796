// This file takes the place of zstd.cpp in a build without zstd. Whoever needs zstd has called
// require_zstd() before, so that nothing here is reached but by a mistake.

#include <utility>

#include "mapping/base/error.h"
#include "strategies/formats/zstd/zstd.h"

namespace dckpt {

void require_zstd() {
  throw_error(ErrorCode::kUnsupported,
              "items that are compressed with zstd need the library, without which this "
              "dckpt was built; build it with -DDCKPT_ZSTD=ON");
}

struct ZstdDecoder::State {};

ZstdDecoder::ZstdDecoder(const ReadableFile& file, std::uint64_t offset, std::uint64_t length)
    : file_(file), offset_(offset), length_(length) {
  require_zstd();
}

ZstdDecoder::~ZstdDecoder() = default;

std::size_t ZstdDecoder::read(MutableByteView) {
  return 0;
}

Bytes zstd_decode(const ReadableFile&, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t) {
  require_zstd();
  return {};
}

struct ZstdEncoder::Context {};

ZstdEncoder::ZstdEncoder(Sink sink) : sink_(std::move(sink)) {
  require_zstd();
}

ZstdEncoder::~ZstdEncoder() = default;

void ZstdEncoder::append(ByteView) {}

void ZstdEncoder::finish() {}

}  // namespace dckpt
