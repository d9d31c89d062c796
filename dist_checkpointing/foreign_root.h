#pragma once

#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// Describes a directory that is no checkpoint: whose layout it has (verl, DeepSpeed, …) and which
/// checkpoints lie below it, as a clause without a subject such as "it is a folder of verl; …".
/// Empty if neither is known. Looks at a bounded number of directories; storage errors end the
/// search without an error.
std::string describe_foreign_root(const Location& directory);

/// Whose format a single file has that is not read (GGUF, HDF5, archives of NeMo 1), and what to do
/// instead, as a sentence; empty for any other file.
std::string describe_foreign_file(const ReadableFile& file);

}  // namespace dckpt
