#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

/// A nested state dict taken apart: its tensors under their paths, and everything else.
struct NestedState {
  std::vector<std::pair<std::string, Tensor>> tensors;  ///< in the order of the file
  Value rest;
};

/// Opens dicts, OrderedDicts and lists; tuples, sets and other objects stay whole in `rest`, with
/// their tensors. A path is the keys joined by dots, list positions as numbers, other keys as
/// Python prints them ("0.(torch.bfloat16, torch.float32).param"); that of a lone tensor is
/// "tensor". In `rest` a dict lacks its tensors, and a list has none in their places. Parameters
/// and tensors with hooks or attributes count as tensors (see tensor_of in torch_file.h).
NestedState extract_tensors(const Value& state);

}  // namespace dckpt
