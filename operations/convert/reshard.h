#pragma once

#include <optional>
#include <vector>

#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/local_plan.h"

namespace dckpt {

struct ReshardOptions {
  /// Number of ranks that the result is cut for; empty keeps the stored chunks, each with the rank
  /// that wrote its file.
  std::optional<int> ranks{};
  /// The form of tensors that are stored as flattened ranges.
  FlattenedForm flattened = FlattenedForm::kMegatron;
};

/// Returns save plans, one per rank, that store the contents of `metadata` again; without overlap
/// if there was none before. An item's `source` is the position of its tensor or object in the
/// metadata. With `ranks`, a tensor is cut along its first axis that is long enough for all ranks
/// (else along its longest), and its pieces go to ranks 0, 1, …; tensors of up to kUncutBytes,
/// tensors whose pieces would be smaller than kSmallestPart, and objects go whole to the rank with
/// the least bytes. Cells of reformulated tensors go to ranks in order, and are cut inside when
/// there are fewer than ranks: the grid stays, so that every Megatron that reads the form still
/// does.
std::vector<SavePlan> plan_reshard(const Metadata& metadata, const ReshardOptions& options);

inline constexpr std::uint64_t kUncutBytes = std::uint64_t{16} << 10;
inline constexpr std::uint64_t kSmallestPart = 512;  ///< bytes; files add more to each

/// Returns the part of the stored tensor that an item of plan_reshard stores, from element `begin`
/// on, `count` elements in row-major order of the item's chunk.
WantedShard wanted_for(const Metadata& metadata, const WriteItem& item, std::int64_t begin,
                       std::int64_t count);

}  // namespace dckpt
