#include "strategies/formats/zstd/zstd.h"

#include <zstd.h>

#include <algorithm>
#include <new>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastGrowth = std::uint64_t{64} << 10;
/// The maximum number of bytes allocated ahead of the content, per compressed byte.
constexpr std::uint64_t kTrustedRatio = 64;

template <typename T, std::size_t (*Free)(T*)>
struct Deleter {
  void operator()(T* context) const noexcept { Free(context); }
};
using DecodeContext = std::unique_ptr<ZSTD_DCtx, Deleter<ZSTD_DCtx, ZSTD_freeDCtx>>;
using EncodeContext = std::unique_ptr<ZSTD_CCtx, Deleter<ZSTD_CCtx, ZSTD_freeCCtx>>;

}  // namespace

void require_zstd() {}

struct ZstdDecoder::State {
  DecodeContext zstd{ZSTD_createDCtx()};
  Bytes piece{};
  ZSTD_inBuffer in{nullptr, 0, 0};
  std::uint64_t taken = 0;  ///< compressed bytes taken
  std::size_t hint = 1;     ///< 0: a frame has ended
  bool full = false;        ///< the decoder may hold back bytes that did not fit
};

ZstdDecoder::ZstdDecoder(const ReadableFile& file, std::uint64_t offset, std::uint64_t length)
    : file_(file), offset_(offset), length_(length), state_(std::make_unique<State>()) {
  if (!range_fits(offset, length, file.size())) {
    throw_error(ErrorCode::kCorrupt, "{} compressed bytes should be here, but the file ends at {}",
                grouped(length), grouped(file.size()));
  }
  if (!state_->zstd) throw std::bad_alloc();
  state_->piece.resize(std::min(length, kReadBytes));
}

ZstdDecoder::~ZstdDecoder() = default;

std::size_t ZstdDecoder::read(MutableByteView into) {
  State& state = *state_;
  ZSTD_outBuffer out{into.data(), into.size(), 0};
  while (out.pos < out.size) {
    if (state.in.pos == state.in.size && !state.full) {
      if (state.taken == length_) {
        if (state.hint == 0) break;
        throw_error(ErrorCode::kCorrupt, "the zstd frame ends too early, in {} bytes", length_);
      }
      const auto count = std::min<std::uint64_t>(state.piece.size(), length_ - state.taken);
      file_.read(offset_ + state.taken, MutableByteView(state.piece).first(count));
      state.taken += count;
      state.in = {state.piece.data(), count, 0};
    }
    state.hint = ZSTD_decompressStream(state.zstd.get(), &out, &state.in);
    if (ZSTD_isError(state.hint) != 0)
      throw_error(ErrorCode::kCorrupt, "the zstd frame cannot be decoded: {}",
                  ZSTD_getErrorName(state.hint));
    state.full = out.pos == out.size && state.hint != 0;
  }
  return out.pos;
}

Bytes zstd_decode(const ReadableFile& file, std::uint64_t offset, std::uint64_t length,
                  std::uint64_t likely, std::uint64_t limit) {
  ZstdDecoder decoder(file, offset, length);
  Bytes decoded(std::min(
      std::max(std::min(likely, checked_mul(length, kTrustedRatio).value_or(likely)), kLeastGrowth),
      limit));
  for (std::uint64_t size = 0;;) {
    size += decoder.read(MutableByteView(decoded).subspan(size));
    if (size > limit) {
      throw_error(ErrorCode::kCorrupt,
                  "the zstd frame of {} bytes decodes to more than {}, the most "
                  "that can be stored here",
                  grouped(length), grouped(limit));
    }
    if (size < decoded.size()) {
      decoded.resize(size);
      return decoded;
    }
    // One byte more than the limit tells whether there is more.
    decoded.resize(std::min(std::max(size * 2, kLeastGrowth), limit + 1));
  }
}

struct ZstdEncoder::Context {
  EncodeContext zstd{ZSTD_createCCtx()};
  Bytes out = Bytes(ZSTD_CStreamOutSize());

  void run(ByteView part, ZSTD_EndDirective end, const Sink& sink) {
    ZSTD_inBuffer from{part.data(), part.size(), 0};
    for (std::size_t left = 1; left != 0 || from.pos < from.size;) {
      ZSTD_outBuffer into{out.data(), out.size(), 0};
      left = ZSTD_compressStream2(zstd.get(), &into, &from, end);
      if (ZSTD_isError(left) != 0) {
        throw_error(ErrorCode::kInternal, "zstd cannot encode: {}", ZSTD_getErrorName(left));
      }
      if (into.pos > 0) sink(ByteView(out).first(into.pos));
      if (end == ZSTD_e_continue && from.pos == from.size) break;
    }
  }
};

ZstdEncoder::ZstdEncoder(Sink sink)
    : sink_(std::move(sink)), context_(std::make_unique<Context>()) {
  if (!context_->zstd) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(context_->zstd.get(), ZSTD_c_checksumFlag, 1);
}

ZstdEncoder::~ZstdEncoder() = default;

void ZstdEncoder::append(ByteView part) {
  context_->run(part, ZSTD_e_continue, sink_);
}

void ZstdEncoder::finish() {
  context_->run({}, ZSTD_e_end, sink_);
}

}  // namespace dckpt
