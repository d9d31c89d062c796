#pragma once

#include <memory>
#include <string>

#include "strategies/storage/storage.h"

namespace dckpt {

/// Opens the regular file at `name` after following links, of which only POSIX storages have any.
/// Throws as Storage::open does; never blocks on a FIFO.
std::unique_ptr<ReadableFile> open_target(const Storage& storage, const std::string& name);

/// Returns storage.absolute(name) with all links followed, the last component too, as far as they
/// lead to something: the same text for all names of a place.
std::string resolved(const Storage& storage, const std::string& name);

}  // namespace dckpt
