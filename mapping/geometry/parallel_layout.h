#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The arrangement of the ranks of a job, counted as Megatron-Core counts them. The job has tp · cp
/// · dp · pp ranks. Experts arrange the same ranks differently: each pipeline stage has etp · ep ·
/// edp of them, where edp, the number of ranks with the same experts, follows from the other sizes.
struct ParallelLayout {
  int tp = 1;  ///< tensor parallel
  int pp = 1;  ///< pipeline parallel
  int ep = 1;  ///< expert parallel
  int dp = 1;  ///< data parallel, without cp; 0: follows from the number of ranks
  int cp = 1;  ///< context parallel
  /// The dimensions, from the one along which neighboring ranks differ to the one that varies last.
  /// Dimensions of size 1 may be missing.
  std::string order = "tp-cp-ep-dp-pp";
  int etp = 0;  ///< tensor parallel size of experts; 0: tp
};

/// One rank's position in a layout.
struct ParallelRank {
  ParallelLayout layout;  ///< `dp` and `etp` filled in
  int rank = 0;
  int tp = 0, cp = 0, dp = 0, pp = 0;
  int dp_cp = 0;              ///< position among the ranks that hold the same layers ("dp-cp")
  int etp = 0, ep = 0;        ///< position among the ranks that share the experts of a stage
  int edp = 0;                ///< position among the ranks that hold the same experts
  int copies() const;         ///< ranks that hold the same layers: dp · cp
  int expert_copies() const;  ///< ranks that hold the same experts: edp
};

/// Returns the position of a rank. Throws CheckpointError (invalid argument) if the layout does not
/// fit the number of ranks, the order has unknown or repeated dimensions or lacks one whose size is
/// not 1, or if the experts' pipeline stages are not those of the other layers.
ParallelRank parallel_rank(const ParallelLayout& layout, int rank, int world_size);

/// The arrangement of the ranks: that of dense layers, or that of experts.
enum class RankGrid : std::uint8_t { kDense, kExperts };

/// Returns the groups of ranks that differ only along `dims`, such as "tp" or "dp-cp", ascending.
/// The experts' grid has the dimensions tp (its size is etp), ep, dp (edp) and pp. Throws
/// CheckpointError (invalid argument) as parallel_rank() does, and for unknown dimensions.
std::vector<std::vector<int>> parallel_groups(const ParallelLayout& layout, std::string_view dims,
                                              RankGrid grid = RankGrid::kDense);

/// Returns the group that contains `rank`. Its first rank is a color for Communicator::split.
std::vector<int> parallel_group(const ParallelRank& rank, std::string_view dims,
                                RankGrid grid = RankGrid::kDense);

/// Consecutive layers of a model.
struct LayerRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns the layers of a rank's pipeline stage if all stages have equally many. With `chunks` > 1
/// (virtual pipeline stages), returns those of its model chunk `chunk`. Throws CheckpointError
/// (invalid argument) if `layers` does not divide.
LayerRange pipeline_layers(const ParallelRank& rank, std::int64_t layers, std::int64_t chunk = 0,
                           std::int64_t chunks = 1);

}  // namespace dckpt
