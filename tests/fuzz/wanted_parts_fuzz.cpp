// Another rank's requests for parts of a checkpoint, before a load that ranks share.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/planning/load/distribution.h"
#include "mapping/planning/load/read_plan.h"

namespace {

dckpt::Metadata stored() {
  dckpt::Metadata metadata;
  metadata.files = {"data"};
  dckpt::TensorStorageMetadata matrix{.key = "matrix", .size = {8, 6}, .chunks = dckpt::BoxList(2)};
  for (const std::int64_t row : {0, 4}) {
    matrix.chunks.push_back(dckpt::Box{{row, 0}, {4, 6}});
    matrix.places.push_back({0, static_cast<std::uint64_t>(row) * 24, 96});
  }
  dckpt::TensorStorageMetadata scalar{.key = "scalar", .chunks = dckpt::BoxList(0)};
  scalar.chunks.push_back(dckpt::Box{});
  scalar.places.push_back({0, 192, 4});
  // Pieces of (2, 5) in a grid of (2, 1), stored as a flat range.
  dckpt::TensorStorageMetadata flat{.key = "flat",
                                    .size = {2, 1, 10},
                                    .chunks = dckpt::BoxList(3),
                                    .flattened_shape = dckpt::Shape{4, 5}};
  flat.chunks.push_back(dckpt::Box{{0, 0, 3}, {2, 1, 6}});
  flat.places.push_back({0, 196, 48});
  metadata.tensors = {matrix, scalar, flat};
  return metadata;
}

/// Requests columns of the matrix, and the flat range's part of two rows.
dckpt::WantedParts other_wish(const dckpt::Metadata& metadata) {
  const std::vector<dckpt::WantedShard> wanted = {{.tensor = 0, .box = {{0, 2}, {8, 2}}},
                                                  {.tensor = 2, .box = {{1, 0}, {2, 5}}}};
  return dckpt::WantedParts(dckpt::plan_reads(metadata, wanted));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const dckpt::Metadata metadata = stored();
  const dckpt::ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const dckpt::WantedParts parts = dckpt::WantedParts::decode(bytes, metadata);
    const dckpt::WantedParts again = dckpt::WantedParts::decode(parts.encode(), metadata);
    if (again.size() != parts.size()) std::abort();
    const std::vector<dckpt::WantedParts> ranks = {parts, other_wish(metadata), again};
    if (parts.size() >= 64) return 0;
    const std::vector<dckpt::ChunkNumber> read_whole = {{0, 1}, {2, 0}};
    for (const std::uint64_t small_chunk : {0, 1000}) {
      const dckpt::PartLimits limits{
          .smallest = 1, .largest = 16, .largest_slab = 24, .small_chunk = small_chunk};
      dckpt::distribute_load(metadata, ranks, 1, limits);
      dckpt::distribute_load(metadata, ranks, 1, limits, read_whole);
    }
  } catch (const dckpt::CheckpointError&) {
  }
  return 0;
}
