#pragma once

#include <string>

#include "mapping/state/tensor.h"

namespace dckpt {

/// Returns a predicate such as "was imported to be saved only; import it with …" that explains why
/// nothing can be loaded into the memory of a tensor, or "" if it can take data.
std::string unfit_to_load_into(const Tensor& tensor);

}  // namespace dckpt
