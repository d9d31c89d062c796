// Any bytes are decoded as zstd frames, up to a limit, and encoded and decoded again.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "strategies/formats/zstd/zstd.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 20;
  try {
    const dckpt::InputFile file(data, size);
    if (dckpt::zstd_decode(file, 0, size, 0, kLimit).size() > kLimit) std::abort();
  } catch (const dckpt::CheckpointError&) {
  }
  dckpt::Bytes frame;
  dckpt::ZstdEncoder encoder(
      [&](dckpt::ByteView part) { frame.insert(frame.end(), part.begin(), part.end()); });
  const dckpt::ByteView content(reinterpret_cast<const std::byte*>(data), size);
  encoder.append(content.first(size / 3));
  encoder.append(content.subspan(size / 3));
  encoder.finish();
  const dckpt::InputFile file(reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size());
  const dckpt::Bytes again = dckpt::zstd_decode(file, 0, frame.size(), size, size);
  if (again != dckpt::Bytes(content.begin(), content.end())) std::abort();
  return 0;
}
