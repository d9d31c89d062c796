#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"

namespace DCKPT_API dckpt {

/// One problem of a tensor's metadata: kBoxesContradict, kElementsOverlap or kElementsMissing. The
/// message names boxes and numbers, not the key, which alone is in `keys`.
struct CoverageProblem : Finding {
  /// A box of elements that two chunks hold, or no chunk holds, as large as can be found easily.
  /// Only for kElementsOverlap and kElementsMissing.
  std::optional<Box> region{};
};

/// The most problems of a kind and key that are reported; the last message then says how many more
/// there are.
inline constexpr std::size_t kMaxProblemsOfAKind = 8;

/// Checks that the chunks of a tensor lie inside it and hold each element exactly once, and that an
/// original shape (flattened_shape) agrees with the stored one. Empty chunks may lie anywhere
/// inside. Exact, in O(n log n) for n chunks cut along any axes in any order: no pair of chunks is
/// compared. Chunks cut irregularly along many axes at once (more than kMaxCorners corners) are
/// reported as a contradiction instead of being checked.
std::vector<CoverageProblem> validate_coverage(const TensorStorageMetadata& tensor);
inline constexpr std::uint64_t kMaxCorners = std::uint64_t{1} << 25;

/// Returns the problem of planner_data as a whole: keys of one path, or for which nothing is
/// stored. A damaged letter in a key turns it into one of these keys, and the value stored under
/// the correct key loses its place in the nested state dict.
std::optional<CheckpointError> problem_of_paths(const Metadata& metadata);

/// Returns the problem of keys that have one path: a nested state dict has room for one of them.
std::optional<CheckpointError> problem_of_shared_path(
    std::span<const std::pair<std::string, KeyPath>> paths);

/// Returns the stored key without a path that one of these keys resembles: that key is damaged. If
/// there is none, they are left from tensors that were removed, and no stored value has lost its
/// place.
std::optional<std::string> key_of_stray_path(const Metadata& metadata);

}  // namespace dckpt
