// What takes the place of zstd.cpp in a build without zstd.

#include <utility>

#include "mapping/base/error.h"
#include "strategies/formats/zstd/zstd.h"

namespace dckpt {
namespace {

[[noreturn]] void throw_left_out() {
  throw CheckpointError(ErrorCode::kUnsupported,
                        "this is compressed with zstd, without which this dckpt was built; build "
                        "it with -DDCKPT_ZSTD=ON");
}

}  // namespace

struct ZstdDecoder::State {};

ZstdDecoder::ZstdDecoder(const ReadableFile& file, std::uint64_t offset, std::uint64_t length)
    : file_(file), offset_(offset), length_(length) {
  throw_left_out();
}

ZstdDecoder::~ZstdDecoder() = default;

std::size_t ZstdDecoder::read(MutableByteView) {
  throw_left_out();
}

Bytes zstd_decode(const ReadableFile&, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t) {
  throw_left_out();
}

struct ZstdEncoder::Context {};

ZstdEncoder::ZstdEncoder(Sink sink) : sink_(std::move(sink)) {
  throw_left_out();
}

ZstdEncoder::~ZstdEncoder() = default;

void ZstdEncoder::append(ByteView) {}

void ZstdEncoder::finish() {}

}  // namespace dckpt
