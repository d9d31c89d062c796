// What another rank says it wants of a checkpoint, before a load that ranks share.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/planning/load_distribution.h"

namespace {

dckpt::Metadata stored() {
  dckpt::Metadata metadata;
  metadata.files = {"data"};
  dckpt::TensorMetadata matrix{.key = "matrix", .size = {8, 6}, .chunks = dckpt::BoxList(2)};
  for (const std::int64_t row : {0, 4}) {
    matrix.chunks.push_back(dckpt::Box{{row, 0}, {4, 6}});
    matrix.places.push_back({0, static_cast<std::uint64_t>(row) * 24, 96});
  }
  dckpt::TensorMetadata scalar{.key = "scalar", .chunks = dckpt::BoxList(0)};
  scalar.chunks.push_back(dckpt::Box{});
  scalar.places.push_back({0, 192, 4});
  metadata.tensors = {matrix, scalar};
  return metadata;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const dckpt::Metadata metadata = stored();
  const dckpt::ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const dckpt::WantedParts parts = dckpt::WantedParts::decode(bytes, metadata);
    const dckpt::WantedParts again = dckpt::WantedParts::decode(parts.encode(), metadata);
    if (again.size() != parts.size()) std::abort();
    const std::vector<dckpt::WantedParts> ranks = {parts, again, {}};
    if (parts.size() < 64) dckpt::distribute_load(metadata, ranks, 1, {.smallest = 1, .largest = 16});
  } catch (const dckpt::CheckpointError&) {
  }
  return 0;
}
