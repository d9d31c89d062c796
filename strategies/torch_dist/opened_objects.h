#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"
#include "mapping/state/flatten.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// torch stores a state dict that it does not flatten (flatten_state_dict=False) by its top level:
/// a dict or list is one object, an archive of torch.save with its tensors inside. Such objects are
/// opened here: what they hold becomes tensors and objects of its own, under the names and paths
/// that flattening would have given it, and the bytes stay where they are.
class OpenedObjects {
 public:
  /// Opens the objects of `metadata` that hold tensors, and replaces them there; reads the heads of
  /// all objects. Nothing happens to metadata with paths: a flattened state has them. Throws
  /// CheckpointError if an object cannot be read.
  OpenedObjects(Metadata& metadata, const Storage& storage);

  bool empty() const noexcept { return archives_.empty(); }

  bool has_tensor(std::size_t tensor) const noexcept { return tensor >= first_tensor_; }
  bool has_object(std::size_t object) const noexcept { return object >= first_object_; }

  /// Of a tensor and an object that it has, by their positions in the metadata. An object has the
  /// bytes that torch.save makes of it alone.
  const ChunkPayload& payload(std::size_t tensor) const;
  Bytes object_bytes(std::size_t object) const;

  /// Compare the whole archive that they are in with its checksums, once.
  bool check_tensor(std::size_t tensor) const;
  bool check_object(std::size_t object) const;

 private:
  struct Archive {
    std::string file;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::vector<RecordedCrc> records;  ///< by offset
  };
  struct Check {
    std::mutex mutex;
    std::optional<bool> has_checksums;  ///< empty: not compared yet
  };
  struct OpenedTensor {
    std::size_t archive = 0;
    ChunkPayload payload;
  };
  struct OpenedObject {
    std::size_t archive = 0;
    Value value;  ///< with lazy tensors
  };

  void open(Metadata& metadata, const BytesStorageMetadata& object,
            const std::vector<FlatLeaf>& leaves, std::vector<RecordedCrc> records);
  bool check(std::size_t archive) const;

  const Storage* storage_;
  std::size_t first_tensor_ = 0;
  std::size_t first_object_ = 0;
  std::vector<Archive> archives_;
  std::vector<OpenedTensor> tensors_;
  std::vector<OpenedObject> objects_;
  std::unique_ptr<Check[]> checks_;
};

}  // namespace dckpt
