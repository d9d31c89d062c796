#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/wire.h"
#include "mapping/planning/save/local_plans.h"

namespace dckpt {

/// The pieces of tensors, and the objects, of which the ranks of a save hold several copies: equal
/// boxes of a key.
struct Replicas {
  struct Copy {
    std::uint32_t rank = 0;
    std::uint32_t position = 0;  ///< in `items[rank]`

    friend bool operator==(const Copy&, const Copy&) = default;
  };
  struct Piece {
    std::string key;
    std::vector<Copy> copies;

    friend bool operator==(const Piece&, const Piece&) = default;
  };

  std::vector<std::vector<std::uint32_t>> items;  ///< for each rank, the items of its local plan
                                                  ///< that are copies, ascending
  std::vector<Piece> pieces;

  friend bool operator==(const Replicas&, const Replicas&) = default;
};

/// Takes O(n log n), and decodes the plan of one rank at a time.
Replicas find_replicas(const LocalPlans& plans);

/// Ascending numbers for the wire: in runs, so that all items of a plan take two bytes.
void write_items(WireWriter& writer, std::span<const std::uint32_t> items);
/// Throws CheckpointError (corrupt) unless they are ascending and below `limit`.
std::vector<std::uint32_t> read_items(WireReader& reader, std::uint64_t limit);

/// Keys whose pieces differ, and the ranks that hold equal copies of them.
struct DifferingReplicas {
  std::vector<std::string> keys;
  std::vector<std::vector<std::size_t>> ranks;  ///< at least two groups, or one rank that holds
                                                ///< different copies
};

/// Compares the hashes that ranks have computed of `replicas.items`; 0 stands for a copy without
/// data. Throws CheckpointError (corrupt) if a rank tells another number of hashes.
std::vector<DifferingReplicas> differing_replicas(
    const Replicas& replicas, std::span<const std::vector<std::uint64_t>> hashes);

}  // namespace dckpt
