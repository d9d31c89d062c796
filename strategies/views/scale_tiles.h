#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/contract/recent_tiles.h"
#include "strategies/views/quantized_weights.h"

namespace dckpt {

/// The scales of quantized weights, of which pieces are in memory.
class ScaleTiles {
 public:
  /// `source` has the scales and must outlive this.
  explicit ScaleTiles(const CheckpointReader& source) : source_(source) {}

  /// Returns the scales, in float32, of the blocks in a row of a weight, which is given by its
  /// index on all axes but the last. Throws CheckpointError (mismatch) if the stored shape of the
  /// weight is another one.
  std::shared_ptr<const float> row(const QuantizedWeight& weight, ShapeView index);

 private:
  using Tile = std::vector<float>;
  /// Position of the scales; matrix on the leading axes; first row of the tile.
  using Key = std::tuple<std::size_t, std::int64_t, std::int64_t>;

  Tile read(const QuantizedWeight& weight, const Box& box) const;
  Tile floats(std::size_t tensor, const Box& box) const;
  void check_shape(const QuantizedWeight& weight) const;

  const CheckpointReader& source_;
  RecentTiles<Key, Tile> tiles_{32};
};

}  // namespace dckpt
