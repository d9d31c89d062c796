#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/load/wanted_parts.h"
#include "mapping/planning/metadata.h"

namespace DCKPT_API dckpt {

/// A stored chunk of a tensor.
struct ChunkNumber {
  std::uint32_t tensor = 0;
  std::uint32_t chunk = 0;
  friend auto operator<=>(const ChunkNumber&, const ChunkNumber&) = default;
};

/// The readers of all parts when ranks load together, so that no byte is read from storage twice.
struct LoadDistribution {
  static constexpr std::uint32_t kNoSlab = UINT32_MAX;

  /// The entry of a rank's wanted parts that contains a part.
  struct Use {
    std::uint32_t rank = 0;
    std::uint32_t entry = 0;
  };
  /// A region that the same ranks need.
  struct Part {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    Box box;  ///< in the global tensor
    std::uint64_t bytes = 0;
    /// The rank that reads it: directly into its own tensor, or as part of a slab.
    std::uint32_t reader = 0;
    std::uint32_t holder = 0;  ///< the first of the ranks that need it to have it: the reader,
                               ///< unless it reads a slab for others
    std::uint32_t slab = kNoSlab;
    /// The range [first_use, first_use + use_count) of LoadDistribution::uses, ordered by rank.
    std::uint32_t first_use = 0;
    std::uint32_t use_count = 0;
  };
  /// A box that is read as a whole, because ranks need short, interleaved runs of it. At most 5 %
  /// more is read than needed.
  struct Slab {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    Box box;
    std::uint64_t bytes = 0;
    std::uint32_t reader = 0;  ///< one of the ranks that need some of it
    /// The range [first_part, first_part + part_count) of LoadDistribution::shared.
    std::uint32_t first_part = 0;
    std::uint32_t part_count = 0;
  };

  /// A chunk that is read in several pieces, and one of its readers.
  struct SplitChunk {
    ChunkNumber chunk;
    std::uint32_t reader = 0;
  };

  std::vector<Part> shared;  ///< parts that several ranks need, and all parts of slabs; disjoint
  std::vector<Part> own;     ///< parts that only the requesting rank needs
  std::vector<Slab> slabs;
  std::vector<Use> uses;
  std::vector<SplitChunk>
      split_chunks;  ///< ascending; without chunks that a rank needs only for itself
  std::vector<std::uint64_t> read_bytes;  ///< bytes that each rank reads, shared or not
  std::uint64_t saved_bytes = 0;  ///< bytes that would be read in addition, or in short runs, if
                                  ///< every rank read everything it needs

  std::span<const Use> uses_of(const Part& part) const noexcept {
    return {uses.data() + part.first_use, part.use_count};
  }
};

struct PartLimits {
  std::uint64_t smallest = std::uint64_t{256} << 10;  ///< parts are not cut below this, even if the
                                                      ///< balance would profit
  std::uint64_t largest = std::uint64_t{16} << 20;    ///< parts above this are cut
  std::uint64_t largest_slab = std::uint64_t{8} << 20;  ///< slabs above this are cut
  std::uint64_t short_run =
      std::uint64_t{64}
      << 10;  ///< parts of several runs below this, beside other ranks' parts, are read as slabs
  std::uint64_t small_chunk = std::uint64_t{256}
                              << 10;  ///< all parts of chunks up to this size that ranks share
                                      ///< without needing the same are also read as slabs
};

/// Assigns the parts that the ranks want: wanted[r] is rank r's. The result is the same on every
/// rank but for `own`, which is that of `rank`. Boxes that overlap without being equal are cut, so
/// each stored element that any rank wants is in exactly one part; parts of short runs are joined
/// to slabs. Parts and slabs that few ranks want are assigned first, large ones before small ones,
/// each to the one of these ranks with the fewest bytes so far; large ones are cut so that the
/// balance works out, and small neighbors stay together. Chunks in `read_whole` (ascending) can
/// only be read as a whole: they are not split.
LoadDistribution distribute_load(const Metadata& metadata, std::span<const WantedParts> wanted,
                                 std::uint32_t rank, const PartLimits& limits = {},
                                 std::span<const ChunkNumber> read_whole = {});

}  // namespace dckpt
