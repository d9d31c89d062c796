#pragma once

#include "strategies/contract/reader.h"
#include "strategies/storage/file_watch.h"

namespace dckpt {

/// Tells whether the files of a checkpoint stayed the same while all of it was read, so that a
/// result is that of one state.
class StillFiles {
 public:
  /// Notes the files; the reader must outlive this object.
  explicit StillFiles(const CheckpointReader& reader);
  /// Throws CheckpointError (aborted) if a file was changed, replaced or removed meanwhile.
  void require_unchanged() const;

 private:
  FileWatch watch_;
};

}  // namespace dckpt
