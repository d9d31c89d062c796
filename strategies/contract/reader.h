#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/conventions.h"
#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// Where the elements of a stored chunk are in its file.
struct ChunkPayload {
  std::uint64_t offset = 0;  ///< byte offset of element 0 in the file
  DType dtype = DType::kFloat32;
  Shape strides;           ///< in elements, one per axis of the chunk
  bool contiguous = true;  ///< strides are row-major for the chunk's sizes
  /// The checksummed bytes around the elements, inside the chunk's place.
  std::optional<RecordedCrc> record{};
  /// The decoded bytes of a place that holds them in another form: offsets are positions in this
  /// file, which may read from the data file, and not live longer. Null: in the data file.
  std::shared_ptr<const ReadableFile> decoded{};
};

/// What is known about a checkpoint as a whole.
struct CheckpointInfo {
  std::string format;            ///< "torch_dist", "dcp", "zarr", "torch", "safetensors", …
  std::optional<int> version{};  ///< of the backend, if the format has one
  std::string producer;  ///< for people: "Megatron-Core 0.11–0.14", "PyTorch DCP"; empty if unknown
  std::string readers{};  ///< what else loads it, for people, where `conventions` do not tell
  /// Torch file of the common state, if it is a separate file.
  std::optional<std::string> common_file{};
  /// The torch record that holds it, if it is in a data file; in DCP directories then perhaps those
  /// with copies of its values.
  std::vector<StorageInfo> common_places{};
  /// If an object holds it, which the metadata do not list: before which of theirs it was planned.
  std::optional<std::size_t> common_object{};
  Conventions conventions{};
  std::vector<std::string> index_files{};  ///< files read to find out what is stored, besides data
                                           ///< files and `common_file`
  /// What the files say about the model as a whole, name and text: `__metadata__` of safetensors,
  /// without what belongs to the format. Where files contradict each other, the first counts.
  std::vector<std::pair<std::string, std::string>> annotations{};
  /// Keys of a plain DCP state's top level that are stored as one object each, with tensors inside:
  /// what is inside has names of its own in the metadata.
  std::vector<std::string> opened_keys{};
  /// The checkpoint is this file; others beside it are not part of it.
  std::optional<std::string> single_file{};
};

/// An open checkpoint of any format. Everything is const and safe to use from several threads. The
/// metadata is complete and consistent (see TensorStorageMetadata). Data files have not been
/// touched; whether they exist and are long enough is found out when they are read, or by verify.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  virtual const CheckpointInfo& info() const noexcept = 0;
  virtual const Metadata& metadata() const noexcept = 0;
  virtual const Storage& storage() const noexcept = 0;

  /// The common state as a dict; none if the format has none.
  virtual Value common_state() const = 0;

  /// Finds the elements of chunk `chunk` of tensor `tensor` (positions in the metadata). `file` is
  /// the chunk's file, or a window on it. Throws CheckpointError (corrupt) if what is stored there
  /// does not match the metadata.
  virtual ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                              const ReadableFile& file) const = 0;

  /// The stored bytes of an object, compared with their checksums if they have any, and the value
  /// in them. Megatron stores a list that holds the object; `decode_object` unwraps it.
  [[nodiscard]] virtual Bytes object_bytes(std::size_t object) const = 0;
  [[nodiscard]] virtual Value decode_object(std::size_t object, ByteView stored) const = 0;
  virtual Value object(std::size_t object) const {
    return decode_object(object, object_bytes(object));
  }

  /// Checks everything that has a checksum in the tensor's chunk or object (zip CRCs). Returns
  /// false if none is recorded.
  virtual bool check_chunk(std::size_t tensor, std::size_t chunk,
                           const ReadableFile& file) const = 0;
  virtual bool check_object(std::size_t object) const = 0;
};

}  // namespace dckpt
