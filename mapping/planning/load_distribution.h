#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/wanted_parts.h"

namespace dckpt {

/// Who reads what when ranks load together, so that what several of them want is read from storage by one: always by a rank that wants it itself.
struct LoadDistribution {
  /// An entry of a rank's wanted parts that contains a part.
  struct Use {
    std::uint32_t rank = 0;
    std::uint32_t entry = 0;
  };
  struct Part {
    std::uint32_t tensor = 0;
    std::uint32_t chunk = 0;
    Box box;                     ///< in the global tensor
    std::uint64_t bytes = 0;
    std::uint32_t reader = 0;    ///< the rank that reads it
    std::uint32_t first_use = 0; ///< [first_use, first_use + uses) of LoadDistribution::uses, ordered by rank
    std::uint32_t use_count = 0;
  };

  std::vector<Part> shared;               ///< parts that several ranks want, disjoint
  std::vector<Part> own;                  ///< parts that no other rank than the one who asked wants
  std::vector<Use> uses;
  std::vector<std::uint64_t> read_bytes;  ///< of each rank, shared or not
  std::uint64_t saved_bytes = 0;          ///< how much more would be read if every rank read all it wants

  std::span<const Use> uses_of(const Part& part) const noexcept { return {uses.data() + part.first_use, part.use_count}; }
};

struct PartLimits {
  std::uint64_t smallest = std::uint64_t{256} << 10;  ///< parts are not cut below it, even if the balance would profit
  std::uint64_t largest = std::uint64_t{16} << 20;    ///< parts above it are cut
};

/// Shares out the parts that the ranks want: wanted[r] is rank r's. The answer is the same on every rank but for `own`, which is that of `rank`.
/// Boxes that overlap without being equal are cut, so each stored element that anyone wants is in exactly one part. Parts that few ranks want are given out
/// first, large ones before small ones, each to the one of them with the fewest bytes so far; large parts are cut so that the balance works out.
LoadDistribution distribute_load(const Metadata& metadata, std::span<const WantedParts> wanted, std::uint32_t rank, const PartLimits& limits = {});

}  // namespace dckpt
