#pragma once

#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// Describes a directory that is not a checkpoint: whose layout it has (verl, DeepSpeed, …) and
/// which checkpoints it contains, as a clause without a subject such as "it is a folder of verl;
/// …". Returns "" if neither is known. Looks at a bounded number of directories. Storage errors end
/// the search silently.
std::string describe_foreign_root(const Location& directory);

}  // namespace dckpt
