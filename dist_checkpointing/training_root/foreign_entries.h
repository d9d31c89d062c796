#pragma once

#include <string>
#include <vector>

#include "strategies/storage/location.h"

namespace dckpt {

/// Returns the files whose presence marks a directory as complete for readers of the built-in
/// formats.
std::vector<std::string> marker_files();

/// Returns the names directly in a checkpoint directory that no save has written: notes, a
/// tokenizer, Megatron-Bridge's run_config.yaml. A directory that cannot be opened as a checkpoint
/// is judged by the names of the formats' files. Throws CheckpointError (io).
std::vector<std::string> foreign_entries(const Location& checkpoint);

}  // namespace dckpt
