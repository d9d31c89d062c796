#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "configs/key_map.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/progression.h"
#include "migration/maps/map_numbers.h"

namespace dckpt {

/// A box whose entries on each axis are `steps` apart: every second row, say.
struct StridedBox {
  Shape offsets;
  Shape sizes;  ///< entries
  Shape steps;

  StridedBox() = default;
  explicit StridedBox(const Box& box)
      : offsets(box.offsets), sizes(box.sizes), steps(box.dims(), 1) {}

  Progression on(std::size_t axis) const { return {offsets[axis], sizes[axis], steps[axis]}; }
  void set(std::size_t axis, const Progression& entries);
  Box box() const { return {offsets, sizes}; }  ///< without steps
};

/// What both have; empty if that is nothing.
std::optional<StridedBox> intersect(const StridedBox& a, const StridedBox& b);

/// A box of a tensor of Megatron, and where its elements are in one of the tensors that make it up.
struct RelationPiece {
  StridedBox box;
  std::size_t tensor = 0;  ///< kPadding: nowhere, they are zero
  StridedBox in_tensor{};
  bool transposed = false;  ///< of the first two axes

  static constexpr std::size_t kPadding = SIZE_MAX;
};

/// How tensors make up one of Megatron, for one layer and expert.
struct Relation {
  Shape whole;
  std::vector<Shape> tensors;
  std::vector<RelationPiece> pieces;
};

/// Shapes of the tensors before each step; the last is what the steps make. Throw CheckpointError
/// (mismatch) for shapes and numbers that do not fit.

/// From the tensors to the whole, which has `padded_rows` rows if they are padded.
Relation relate(std::span<const MapTransform> steps, std::vector<Shape> tensors,
                std::int64_t padded_rows, const MapNumbers& numbers);

/// The shapes of `count` tensors that make up a whole.
std::vector<Shape> tensors_of(std::span<const MapTransform> steps, std::size_t count,
                              const Shape& whole, const MapNumbers& numbers);

/// The part of `piece` in `box`, which has only entries of the piece's: where it is in its tensor.
StridedBox place_in_tensor(const RelationPiece& piece, const StridedBox& box);

}  // namespace dckpt
