#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configs/policy/conventions.h"
#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "mapping/base/finding.h"
#include "mapping/base/hash.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// The location of a stored chunk's elements in its file.
struct ChunkPayload {
  std::uint64_t offset = 0;  ///< byte offset of element 0 in the file
  DType dtype = DType::kFloat32;
  Shape strides;           ///< in elements, one per axis of the chunk
  bool contiguous = true;  ///< strides are row-major for the chunk's sizes
  /// The checksummed bytes around the elements, inside the chunk's place.
  std::optional<RecordedCrc> record{};
  /// The decoded bytes, if the chunk's place stores them in another form; null if the elements are
  /// in the data file. Offsets are then positions in this file, which may read from the data file
  /// and must not outlive it.
  std::shared_ptr<const ReadableFile> decoded{};
};

/// Facts about a checkpoint as a whole.
struct CheckpointInfo {
  std::string format;            ///< "torch_dist", "dcp", "zarr", "torch", "safetensors", …
  std::optional<int> version{};  ///< backend version, if the format has one
  /// The writer, as text for messages: "Megatron-Core 0.11–0.14", "PyTorch DCP"; empty if unknown.
  std::string producer;
  /// Other software that loads it, as text for messages, where `conventions` do not tell.
  std::string readers{};
  /// Torch file of the common state, if it is a separate file.
  std::optional<std::string> common_file{};
  /// The torch record with the common state, if it is in a data file; in DCP directories, records
  /// with copies of its values may follow.
  std::vector<StorageInfo> common_places{};
  /// If the common state is in an object, which the metadata does not list: the position among the
  /// listed objects before which it was planned.
  std::optional<std::size_t> common_object{};
  Conventions conventions{};
  /// Files read to find out what is stored, besides data files and `common_file`.
  std::vector<std::string> index_files{};
  /// Statements of the files about the model as a whole, as name and text: `__metadata__` of
  /// safetensors, without the entries of the format. Where files contradict each other, the first
  /// counts.
  std::vector<std::pair<std::string, std::string>> annotations{};
  /// Files of an adapter beside a model, which are not part of it.
  std::vector<std::string> adapter_files{};
  /// Keys at the top level of a plain DCP state that are stored as one object each, with tensors
  /// inside, which have names of their own in the metadata.
  std::vector<std::string> opened_keys{};
  /// If set, the checkpoint is this file alone; others beside it are not part of it.
  std::optional<std::string> single_file{};
  /// Doubts about the files that reading them cannot settle.
  Findings findings{};
};

/// An open checkpoint of any format. Everything is const and safe to use from several threads. The
/// metadata is complete and consistent (see TensorStorageMetadata). Data files have not been
/// touched: only reads, or verify, find out whether they exist and are long enough.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;

  virtual const CheckpointInfo& info() const noexcept = 0;
  virtual const Metadata& metadata() const noexcept = 0;
  virtual const Storage& storage() const noexcept = 0;

  /// Returns the common state as a dict; none if the format has none.
  virtual Value common_state() const = 0;

  /// Finds the elements of chunk `chunk` of tensor `tensor` (positions in the metadata). `file` is
  /// the chunk's file, or a window on it. Throws CheckpointError (corrupt) if what is stored there
  /// does not match the metadata.
  virtual ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                              const ReadableFile& file) const = 0;

  /// Returns the stored bytes of an object, compared with their checksums if they have any.
  /// `decode_object` returns the value in them, unwrapped from the list in which Megatron stores
  /// it.
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
