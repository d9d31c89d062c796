#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "mapping/base/progress.h"
#include "mapping/geometry/element_stats.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

struct TensorStats {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;
  /// Empty for elements that are not real numbers (has_stats()).
  std::optional<ElementStats> elements{};
};

/// The statistics of the weights in a layer: of all tensors that name its number, and of its part
/// of those that hold all layers of the stack along their first axis, as Megatron stores them.
struct LayerStats {
  std::string stack;  ///< "decoder" for "decoder.layers.3.mlp.weight"
  std::uint64_t layer = 0;
  ElementStats elements{};
};

struct StatsOptions {
  KeyFilter keys{};
  int threads = 2;  ///< at most one for each 8 MiB of `memory`
  std::uint64_t memory = std::uint64_t{128}
                         << 20;  ///< bytes of tensors in memory at a time, over all threads
  /// Leaves out tensors that cannot be read (StatsReport::unreadable) instead of throwing.
  bool past_damage = false;
  Progress progress{};
};

struct StatsReport {
  std::vector<TensorStats> tensors;       ///< in the order of the metadata
  std::vector<LayerStats> layers;         ///< by stack and number; without optimizer state
  ElementStats weights{};                 ///< all tensors but the optimizer's
  std::vector<std::string> unreadable{};  ///< keys of tensors, which have no statistics then
  /// Elements that are not finite (not-finite), and values that no optimizer makes
  /// (state-impossible). Buckets of Megatron's optimizer are left out, since their gaps between
  /// parameters hold anything.
  Findings findings{};
};

/// Reads the elements of all tensors once, in the order of their chunks. The last digits of sums
/// depend on the chunks, not on the threads. Throws CheckpointError if a tensor is not covered
/// exactly or cannot be read, unless `past_damage` is set.
[[nodiscard]] StatsReport stats(const CheckpointReader& reader, const StatsOptions& options = {});
/// Does the same with the ranks of a job, which have opened the same checkpoint: they divide the
/// elements by bytes, and all get the same report, that of a single rank. Collective; an error on
/// one rank is thrown on all.
[[nodiscard]] StatsReport stats(const CheckpointReader& reader, const StatsOptions& options,
                                Communicator& comm);

/// Sorts tensors with elements that are not finite first, then by their furthest element. Second
/// moments of an optimizer come last: averages of squares lie far from their mean by nature.
[[nodiscard]] std::vector<TensorStats> outliers_first(std::vector<TensorStats> tensors);

}  // namespace dckpt
