#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "mapping/base/bytes.h"
#include "mapping/base/readable_file.h"

namespace dckpt {

/// Throws CheckpointError (unsupported) in a build without zstd.
void require_zstd();

/// Decodes the zstd frames that fill `length` bytes of `file` from `offset` on, from front to back.
/// Throws CheckpointError (corrupt) for damaged or incomplete frames, and for a frame that needs a
/// window above 128 MiB. The file must outlive it.
class ZstdDecoder {
 public:
  ZstdDecoder(const ReadableFile& file, std::uint64_t offset, std::uint64_t length);
  ~ZstdDecoder();

  /// Fills `into` with the next bytes; fewer only at the end. Returns their number.
  std::size_t read(MutableByteView into);

 private:
  struct State;

  const ReadableFile& file_;
  std::uint64_t offset_;
  std::uint64_t length_;
  std::unique_ptr<State> state_;
};

/// Returns the content of the zstd frames that fill `length` bytes of `file` from `offset` on.
/// `likely` is its approximate size. Throws as ZstdDecoder does, and before more than `limit` bytes
/// have been decoded.
Bytes zstd_decode(const ReadableFile& file, std::uint64_t offset, std::uint64_t length,
                  std::uint64_t likely, std::uint64_t limit);

/// Writes one zstd frame with a checksum, at zstd's default level.
class ZstdEncoder {
 public:
  using Sink = std::function<void(ByteView)>;

  /// Sends compressed bytes to `sink`.
  explicit ZstdEncoder(Sink sink);
  ~ZstdEncoder();

  void append(ByteView part);
  void finish();

 private:
  struct Context;

  Sink sink_;
  std::unique_ptr<Context> context_;
};

}  // namespace dckpt
