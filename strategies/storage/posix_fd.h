#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/error.h"
#include "mapping/base/file_descriptor.h"
#include "strategies/storage/storage.h"

// Internal to the POSIX storage; not installed.
namespace dckpt::posix {

/// Returns an error "attempt: text of errno" about a path.
CheckpointError system_error(const std::string& attempt, int error, const std::string& path,
                             ErrorCode code = ErrorCode::kIo);

/// Describes the file type of `mode` of stat, with an article: "a FIFO".
const char* kind_of(unsigned mode) noexcept;

/// Wraps an open descriptor for reading. Throws (corrupt) unless it is a regular file.
std::unique_ptr<ReadableFile> readable_file(Fd fd, std::string path);

}  // namespace dckpt::posix
