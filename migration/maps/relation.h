#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "configs/key_map.h"
#include "mapping/geometry/box.h"
#include "migration/maps/map_numbers.h"

namespace dckpt {

/// A box of a tensor of Megatron, and where its elements are in one of the tensors that make it up.
struct RelationPiece {
  Box box;
  std::size_t tensor = 0;  ///< kPadding: nowhere, they are zero
  Box in_tensor{};
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

/// The part of `piece` in `box`, which lies in the piece's: where it is in its tensor.
Box place_in_tensor(const RelationPiece& piece, const Box& box);

}  // namespace dckpt
