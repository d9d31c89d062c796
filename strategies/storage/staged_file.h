#pragma once

#include <string>

#include "strategies/storage/storage.h"

namespace dckpt {

/// A small file that is replaced in one step. In a storage with rename it is written under a hidden
/// name and synced first, so that a lack of space fails before the replacement. At any time the
/// name refers to the old content or to all of `content`, which must stay valid until commit(). One
/// process at a time may use it. Throws CheckpointError (io).
class StagedFile {
 public:
  StagedFile(Storage& storage, std::string name, ByteView content);
  /// Gives the file its name, and makes that durable.
  void commit();

  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  /// Removes the hidden file if it was not committed. Errors are only logged.
  ~StagedFile();

 private:
  void remove() noexcept;

  Storage& storage_;
  std::string name_;
  ByteView content_;
  std::string temporary_;
  bool open_ = false;  ///< the hidden file exists
};

}  // namespace dckpt
