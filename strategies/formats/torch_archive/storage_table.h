#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>

#include "mapping/base/readable_file.h"
#include "mapping/state/value.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/torch_archive/tensor_rebuild.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {

/// The storages of one torch file. Each is read (or described) once, when the pickle first refers
/// to it.
class StorageTable {
 public:
  struct Located {
    std::uint64_t offset = 0;
    std::optional<RecordedCrc> record{};  ///< begins at `offset` and holds at least the storage
  };
  /// Returns the position in the file of a storage's first byte, after checking that all its bytes
  /// are in the file.
  using Locate = std::function<Located(const StorageId&)>;

  StorageTable(const ReadableFile& file, const TorchFileOptions& options, Locate locate)
      : file_(file), options_(options), locate_(std::move(locate)) {}

  /// Returns hooks that turn persistent ids into storages and rebuild calls into tensors. They
  /// refer to this table.
  pickle::ValueHooks hooks();

 private:
  struct Entry {
    std::string type;
    std::int64_t numel = 0;
    Value storage{};
  };

  Value resolve(const Value& persistent_id);
  Tensor elements(const StorageId& id);
  void compare(const Tensor& elements, const RecordedCrc& record) const;

  const ReadableFile& file_;
  TorchFileOptions options_;
  Locate locate_;
  std::unordered_map<std::string, Entry> entries_;
  std::uint64_t bytes_read_ = 0;
};

/// Loads the stream form, which has no zip archive around it.
Value load_torch_stream(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                        const TorchFileOptions& options);

}  // namespace dckpt
