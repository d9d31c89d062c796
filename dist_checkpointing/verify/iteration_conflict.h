#pragma once

#include <string>

#include "strategies/contract/reader.h"

namespace dckpt {

/// Returns a sentence if the folder's name has another iteration than the common state: it was
/// renamed, or holds files of several iterations. Otherwise empty.
[[nodiscard]] std::string iteration_conflict(const CheckpointReader& reader);

}  // namespace dckpt
