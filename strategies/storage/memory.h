#pragma once

#include <memory>

#include "strategies/storage/storage.h"

namespace dckpt {

/// A tree of files in memory; for tests and for checkpoints that never touch a disk.
std::shared_ptr<Storage> memory_storage(std::string name = "memory:");

}  // namespace dckpt
