#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// Coordinates of a rank's folder, or the number of ranks along each axis.
struct ModelParallelRank {
  std::int64_t tensor = 0;
  std::int64_t pipeline = 0;
  std::int64_t expert = 0;
  friend auto operator<=>(const ModelParallelRank&, const ModelParallelRank&) = default;
};

/// Parses a folder's name, "mp_rank_00_001" → {0, 1}: the tensor-parallel rank, then those of
/// pipeline and expert parallelism where the run had them.
std::optional<std::vector<int>> rank_folder_numbers(const std::string& name);

/// The inverse of rank_folder_numbers().
std::string rank_folder_name(const std::vector<int>& numbers);

inline constexpr const char* kRankFile = "model_optim_rng.pt";  ///< the main file of a folder

/// A .pt file in a rank's folder, as known without reading its tensors.
struct RankFile {
  std::string folder;
  std::string stem;           ///< the file is FOLDER/STEM.pt
  const Value* state;         ///< its content without tensors
  bool has_elements = false;  ///< it holds elements of tensors

  std::string name() const { return folder + "/" + stem + ".pt"; }
  /// True for model_optim_rng.pt, or model_rng.pt beside the distributed optimizer before May 2023.
  bool is_main() const { return stem == "model_optim_rng" || stem == "model_rng"; }
};

/// Checks that the folders are those of one save, each under its own name: all ranks of the grid
/// are there (of `args` in the main files, or of the folders' names where those have none), each
/// with its main file; iteration and parallel sizes are the same in all; each file is of the rank
/// that its folder names, as far as `args.rank` tells; none is a copy of another. Throws
/// CheckpointError: (incomplete) with what is missing, (corrupt) for what is misplaced, a copy, or
/// of another save.
void check_rank_grid(const Storage& storage, std::span<const RankFile> files);

}  // namespace dckpt
