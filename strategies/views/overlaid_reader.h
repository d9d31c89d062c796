#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "strategies/contract/reader.h"

namespace dckpt {

/// A tensor that takes the place of another, or comes after all others if `key` is new.
struct OverlaidTensor {
  std::string key;
  std::size_t tensor = 0;  ///< position in the metadata of the checkpoint that has it
};

/// Returns the checkpoint `source` with tensors of another one in place of its own or after them,
/// as a reader like any other. They have the other's dtypes and shapes.
std::unique_ptr<CheckpointReader> overlaid_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::shared_ptr<const CheckpointReader> other,
                                                  const std::vector<OverlaidTensor>& tensors);

}  // namespace dckpt
