#pragma once

#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// Describes a directory that is not a checkpoint: whose layout it has (verl, DeepSpeed, …) and
/// which checkpoints it contains, as a clause without a subject such as "it is a folder of verl;
/// …". Returns "" if neither is known. Looks at a bounded number of directories. Storage errors end
/// the search silently.
std::string describe_foreign_root(const Location& directory);

/// Returns a sentence that names the unsupported format of a single file (GGUF, HDF5, NeMo 1
/// archives) and what to do instead, or "" for any other file.
std::string describe_foreign_file(const ReadableFile& file);

}  // namespace dckpt
