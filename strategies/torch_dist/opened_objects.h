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

/// Opens the objects of a state dict that torch did not flatten (flatten_state_dict=False). torch
/// stores its top level: a dict or list is one object, an archive of torch.save with its tensors
/// inside. The content of such objects becomes tensors and objects of its own, under the names and
/// paths that flattening would have given it, and the bytes stay where they are.
class OpenedObjects {
 public:
  /// Opens the objects of `metadata` that hold tensors, and replaces them there; reads the heads of
  /// all objects except cells of Megatron's. Leaves metadata with paths unchanged, since a
  /// flattened state has them. An object stays one object if it is compressed, if it cannot be
  /// read, if flattening refuses it, if a name inside it is taken, if it has tensors in sets or in
  /// keys of dicts, or if one of its parts would take more bytes alone than all of it does (parts
  /// may share elements).
  OpenedObjects(Metadata& metadata, const Storage& storage);

  bool empty() const noexcept { return archives_.empty(); }
  /// Keys of the objects that were opened.
  const std::vector<std::string>& keys() const noexcept { return keys_; }

  bool has_tensor(std::size_t tensor) const noexcept { return tensor >= first_tensor_; }
  bool has_object(std::size_t object) const noexcept { return object >= first_object_; }

  /// Return the payload of a tensor and the bytes of an object from an opened object, by position
  /// in the metadata. The bytes are those that torch.save makes of the object alone.
  const ChunkPayload& payload(std::size_t tensor) const;
  Bytes object_bytes(std::size_t object) const;

  /// Return content_crc of the archive that they are in, if .metadata gives it.
  std::uint32_t tensor_crc(std::size_t tensor) const;
  std::uint32_t object_crc(std::size_t object) const;

  /// Compare the whole archive that they are in with its checksums, once.
  bool check_tensor(std::size_t tensor) const;
  bool check_object(std::size_t object) const;

 private:
  struct Archive {
    std::string file;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::uint32_t content_crc = 0;
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
    Value value;  ///< its tensors are lazy
  };

  struct Contents;

  static Contents contents_of(const BytesStorageMetadata& object, const ReadableFile& file);
  void open(Metadata& metadata, const BytesStorageMetadata& object, Contents contents);
  bool check(std::size_t archive) const;

  const Storage* storage_;
  std::size_t first_tensor_ = 0;
  std::size_t first_object_ = 0;
  std::vector<std::string> keys_;
  std::vector<Archive> archives_;  ///< same order as keys_
  std::vector<OpenedTensor> tensors_;
  std::vector<OpenedObject> objects_;
  std::unique_ptr<Check[]> checks_;
};

}  // namespace dckpt
