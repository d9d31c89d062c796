#pragma once

#include <memory>
#include <string>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Opens the regular file at `name` after following links, of which only POSIX storages have any.
/// Throws as Storage::open does; never blocks on a FIFO.
std::unique_ptr<ReadableFile> open_target(const Storage& storage, const std::string& name);

}  // namespace dckpt
