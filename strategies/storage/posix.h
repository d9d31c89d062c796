#pragma once

#include <filesystem>
#include <memory>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Returns the files below `root` of the local (or mounted) file system, "" for the working
/// directory. The root itself may be a symlink and need not exist yet for writing.
std::shared_ptr<Storage> posix_storage(const std::filesystem::path& root);

/// Opens a single regular file anywhere; links are followed. Throws as Storage::open does, never
/// blocks on a FIFO.
std::unique_ptr<ReadableFile> open_posix_file(const std::filesystem::path& path);

}  // namespace dckpt
