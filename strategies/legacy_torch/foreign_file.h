#pragma once

#include <string>

#include "mapping/base/readable_file.h"

namespace dckpt {

/// Returns a sentence that names the unsupported format of a single file (GGUF, HDF5, NeMo 1
/// archives) and what to do instead, or "" for any other file.
std::string describe_foreign_file(const ReadableFile& file);

}  // namespace dckpt
