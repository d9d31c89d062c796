#pragma once

#include <cstdint>

#include "mapping/base/bytes.h"
#include "mapping/base/readable_file.h"

namespace dckpt::pickle {

/// Returns the whole content of a file that holds one pickle. Its first opcodes and its last byte
/// are checked before the rest is read, so that a large file of another kind takes no memory.
/// Throws CheckpointError (corrupt) if they are not those of a pickle, or if the file is larger
/// than `limit`.
Bytes read_pickle_file(const ReadableFile& file, std::uint64_t limit);

}  // namespace dckpt::pickle
