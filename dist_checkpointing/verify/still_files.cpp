#include "dist_checkpointing/verify/still_files.h"

#include <string>

#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/error.h"

namespace dckpt {

StillFiles::StillFiles(const CheckpointReader& reader) {
  for (const std::string& name : files_of(reader)) {
    try {
      watch_.compare(reader.storage(), name);
    } catch (const CheckpointError&) {  // reading the file says what is wrong with it
    }
  }
}

void StillFiles::require_unchanged() const {
  watch_.require_unchanged(
      "the result would be about neither state: try again when no job writes there");
}

}  // namespace dckpt
