#pragma once

#include <cstdint>
#include <vector>

#include "mapping/geometry/box.h"

namespace dckpt {

/// Finds the chunks of a tensor that share elements with a box. The first few queries look at every
/// chunk; after that the chunks are kept sorted along each axis, and a query costs as much as the
/// axis with the fewest candidates has.
class ChunkIndex {
 public:
  /// Keeps a reference to `chunks`.
  explicit ChunkIndex(const BoxList& chunks) : chunks_(chunks) {}

  /// Replaces `found` with the positions of the chunks, ascending. The box must have the chunks'
  /// number of axes.
  void find(const Box& box, std::vector<std::uint32_t>& found);

 private:
  /// The chunks in the order of their first coordinate on one axis.
  struct Axis {
    std::size_t axis;
    std::vector<std::uint32_t> order;
    std::vector<std::int64_t> begins;       ///< in that order
    std::vector<std::int64_t> ends_so_far;  ///< the largest end of this chunk and those before
  };
  struct Window {
    std::size_t first = 0;
    std::size_t last = 0;
  };

  void sort();
  static Window window(const Axis& axis, const Box& box);

  const BoxList& chunks_;
  int scans_ = 0;
  std::vector<Axis> axes_;
};

}  // namespace dckpt
