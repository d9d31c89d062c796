#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/progression.h"
#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {

/// A box whose entries on each axis are `steps` apart, such as every second row.
struct StridedBox {
  Shape offsets;
  Shape sizes;  ///< numbers of entries
  Shape steps;

  StridedBox() = default;
  explicit StridedBox(const Box& box)
      : offsets(box.offsets), sizes(box.sizes), steps(box.dims(), 1) {}

  Progression on(std::size_t axis) const { return {offsets[axis], sizes[axis], steps[axis]}; }
  void set(std::size_t axis, const Progression& entries);
  Box box() const { return {offsets, sizes}; }  ///< without steps
};

/// Returns the entries that both boxes have; empty if there are none.
std::optional<StridedBox> intersect(const StridedBox& a, const StridedBox& b);

/// A box of a Megatron tensor, and the location of its elements in one of the tensors that make it
/// up.
struct RelationPiece {
  StridedBox box;
  std::size_t tensor = 0;  ///< kPadding if the elements are zero and not stored
  StridedBox in_tensor{};
  /// The tensor's axis for each of the box's; extents of other axes of the tensor are 1.
  std::vector<std::size_t> axes{};

  static constexpr std::size_t kPadding = SIZE_MAX;
};

/// The composition of a Megatron tensor from other tensors, for one layer and expert.
struct Relation {
  Shape whole;
  std::vector<Shape> tensors;
  std::vector<RelationPiece> pieces;
};

/// The following functions throw CheckpointError (mismatch) for shapes and numbers that do not fit.

/// Relates the tensors to the whole, which has `padded_rows` rows if the steps pad it.
Relation relate(std::span<const MapTransform> steps, std::vector<Shape> tensors,
                std::int64_t padded_rows, const MapNumbers& numbers);

/// Returns the shapes of the `count` tensors that make up a whole.
std::vector<Shape> tensors_of(std::span<const MapTransform> steps, std::size_t count,
                              const Shape& whole, const MapNumbers& numbers);

/// Checks that a row which makes query, key and value, and has no step for their heads, has as many
/// rows as the heads of the language model. Does nothing if the heads are not known.
void require_heads(const MapRow& row, const Shape& whole, const MapNumbers& numbers);

/// Returns where `box`, which has only entries of `piece`, is in the piece's tensor.
StridedBox place_in_tensor(const RelationPiece& piece, const StridedBox& box);

}  // namespace dckpt
