#pragma once

#include <vector>

#include "mapping/base/wire.h"
#include "operations/inspect/diff.h"

namespace dckpt {

/// The differences of a tensor, an object, or the common state, which travel between ranks.
struct Differences {
  std::vector<Difference> found{};
  bool compared = true;  ///< false if neither side has any

  void write(WireWriter& writer) const;
  /// Throws CheckpointError (corrupt).
  void read(WireReader& reader);
};

}  // namespace dckpt
