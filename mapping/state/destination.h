#pragma once

#include <string>

#include "mapping/state/tensor.h"

namespace dckpt {

/// Why nothing can be loaded into the memory of a tensor, and what to do, as the end of a sentence
/// whose subject it is; empty if it can take data.
std::string unfit_to_load_into(const Tensor& tensor);

}  // namespace dckpt
