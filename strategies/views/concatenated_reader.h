#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A tensor of one axis made of boxes of others, one after the other.
struct ConcatenatedTensor {
  struct Part {
    std::int64_t begin = 0;    ///< position of its first element
    std::uint32_t tensor = 0;  ///< position in the source's metadata
    Box box;                   ///< box in its global shape; its elements follow in row-major order
  };
  std::string key;
  TensorProperties properties;  ///< the dtype is that of all its parts
  std::int64_t size = 0;
  std::vector<Part> parts;      ///< from front to back, with zeros in between
  std::int64_t chunk = 0;       ///< elements per chunk in the result
  std::vector<int> ranks = {};  ///< rank of each chunk
};

/// Returns the checkpoint `source` with these tensors after its own. Their parts are gathered when
/// they are read, so the memory for a tensor does not depend on how finely its parts are cut.
/// Throws CheckpointError (mismatch) for parts that overlap or do not fit their tensors.
std::unique_ptr<CheckpointReader> concatenated_reader(std::unique_ptr<CheckpointReader> source,
                                                      std::vector<ConcatenatedTensor> tensors);

}  // namespace dckpt
