#pragma once

#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// Describes a directory that is no checkpoint: whose layout it has (verl, DeepSpeed, …) and which
/// checkpoints lie below it, as a clause without a subject such as "it is a folder of verl; …".
/// Empty if neither is known. Looks at a bounded number of directories; storage errors end the
/// search without an error.
std::string describe_foreign_root(const Location& directory);

}  // namespace dckpt
