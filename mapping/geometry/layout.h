#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/box.h"

namespace DCKPT_API dckpt {

/// Ranks arranged in a grid, like torch's DeviceMesh. Invariant: every extent ≥ 1, and as many
/// ranks as the product of the extents, all different and not negative. A mesh without dimensions
/// is one rank.
class DeviceMesh {
 public:
  /// `ranks` are global rank numbers, row-major; empty means 0, 1, 2, … Throws CheckpointError
  /// (invalid argument) if the invariant does not hold or a limit is exceeded.
  explicit DeviceMesh(Shape shape, std::vector<int> ranks = {});

  const Shape& shape() const noexcept { return shape_; }
  std::size_t dims() const noexcept { return shape_.size(); }
  std::int64_t size() const noexcept { return numel(shape_); }

  /// Returns the coordinates of a rank; empty if it is not on the mesh. Linear in the number of
  /// ranks when they were listed.
  std::optional<Shape> coordinate_of(int rank) const;

 private:
  Shape shape_;
  std::vector<int> ranks_;  // empty: position = rank
};

/// Limits of a mesh; its dimensions are limited to kMaxDims.
inline constexpr std::int64_t kMaxMeshRanks = std::int64_t{1} << 24;

/// The parts that the ranks along one mesh dimension hold: torch's placements. Tensor dims below
/// zero count from the end.
struct Replicate {};  ///< the same on all of them
struct Shard {
  std::int64_t dim = 0;
};  ///< ceil-sized chunks along a tensor dim; the last ones may be shorter or empty
/// torch's _StridedShard: the tensor dim is cut into `split_factor` chunks first, each of them into
/// one piece per rank; a rank holds one of each.
struct StridedShard {
  std::int64_t dim = 0;
  std::int64_t split_factor = 1;
};
struct Partial {};  ///< terms still to be summed: not a layout that a checkpoint can describe
using Placement = std::variant<Replicate, Shard, StridedShard, Partial>;

/// Returns a placement as torch prints it: "R", "S(0)", "_S(0, 2)", "P".
std::string to_string(const Placement& placement);

/// The distribution of a tensor over a mesh.
struct MeshLayout {
  DeviceMesh mesh;
  std::vector<Placement> placements;  ///< one per mesh dimension
  /// The order in which the mesh dimensions cut the tensor; empty = from left to right, torch's
  /// order. It matters where several cut the same tensor dim. FSDP2 over tensor parallelism really
  /// cuts by the tensor-parallel dimension first: {Shard{0}, Shard{0}} with order {1, 0}. Torch
  /// calls that {StridedShard{0, tp}, Shard{0}}, which is the same only where the extents divide.
  std::vector<std::size_t> order{};
};

/// Returns text such as "[_S(0, 2), S(0)] on a (2, 2) mesh".
std::string to_string(const MeshLayout& layout);

/// A box of the global tensor and its offset in the local one.
struct LocalPiece {
  Box box;
  Shape local_offsets;
  friend bool operator==(const LocalPiece&, const LocalPiece&) = default;
};

/// The part of a tensor that one rank holds. Invariant: the pieces fill the local tensor, in
/// row-major order of their local offsets, and have elements; only a local tensor without elements
/// is one empty piece (which, as in torch, begins at the end of the tensor along each dim of which
/// the rank has nothing).
struct LocalPart {
  Shape shape;                     ///< of the local tensor
  std::vector<LocalPiece> pieces;  ///< one, unless a StridedShard is not undone by another cut
  /// The number of this copy of the pieces: its row-major position along the mesh dimensions that
  /// replicate. All ranks hold the same of a tensor without elements, and it is the position on the
  /// mesh. 0 = main.
  std::int64_t replica = 0;
};

/// Returns the part that a rank holds; nothing if it is not on the mesh. Throws CheckpointError
/// (invalid argument) if the layout does not fit the tensor, is Partial somewhere, or gives a rank
/// more than kMaxPieces pieces.
std::optional<LocalPart> local_part(const MeshLayout& layout, ShapeView global_shape, int rank);
inline constexpr std::size_t kMaxPieces = std::size_t{1} << 16;

}  // namespace dckpt
