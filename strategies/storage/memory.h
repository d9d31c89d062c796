#pragma once

#include <memory>

#include "mapping/base/api.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// Returns a tree of files in memory, for tests and for checkpoints that never touch a disk.
std::shared_ptr<Storage> memory_storage(std::string name = "memory:");

}  // namespace dckpt
