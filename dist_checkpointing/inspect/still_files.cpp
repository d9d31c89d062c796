#include "dist_checkpointing/inspect/still_files.h"

#include <string>

#include "dist_checkpointing/integrity.h"

namespace dckpt {

StillFiles::StillFiles(const CheckpointReader& reader) {
  for (const std::string& name : files_of(reader)) watch_.compare(reader.storage(), name);
}

void StillFiles::require_unchanged() const {
  watch_.require_unchanged(
      "the result would be about neither state: try again when no job writes there");
}

}  // namespace dckpt
