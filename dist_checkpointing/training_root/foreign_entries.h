#pragma once

#include <string>
#include <vector>

#include "strategies/storage/location.h"

namespace dckpt {

/// Files by whose presence readers of the built-in formats take a directory for complete.
std::vector<std::string> marker_files();

/// Names directly in a checkpoint directory that no save has written: notes, a tokenizer,
/// Megatron-Bridge's run_config.yaml. A directory that cannot be opened as a checkpoint is judged
/// by the names of the formats' files. Throws CheckpointError (io).
std::vector<std::string> foreign_entries(const Location& checkpoint);

}  // namespace dckpt
