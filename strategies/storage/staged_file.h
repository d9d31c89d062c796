#pragma once

#include <string>

#include "strategies/storage/storage.h"

namespace dckpt {

/// A small file that is replaced in one step: in a storage with rename it is written under a hidden
/// name and synced first, so that a lack of space fails before the replacement. One process at a
/// time. Throws CheckpointError (io). At any time the name refers to the old content or to all of
/// `content`, which must stay until commit().
class StagedFile {
 public:
  StagedFile(Storage& storage, std::string name, ByteView content);
  /// Renames it to its name, and makes that durable.
  void commit();

  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  /// Removes it if it was not committed. Errors are logged only.
  ~StagedFile();

 private:
  void remove() noexcept;

  Storage& storage_;
  std::string name_;
  ByteView content_;
  std::string temporary_;
  bool open_ = false;  ///< the temporary file is there
};

}  // namespace dckpt
