#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mapping/base/hash.h"
#include "mapping/geometry/box.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// A checkpoint whose files are parsed when it is opened, for formats without an index of where the
/// elements are: its chunks are parts of the tensors that torch.save or others wrote, and its
/// objects are values. A backend fills it and calls reader().
class ParsedCheckpoint {
 public:
  explicit ParsedCheckpoint(std::shared_ptr<const Storage> storage)
      : storage_(std::move(storage)) {}

  /// Loads a torch file, leaving its tensors in the file. Throws CheckpointError as load_torch_file
  /// does.
  const Value& torch_file(const std::string& name);

  /// Adds a tensor, whose metadata has no chunks yet, and returns its position.
  std::size_t add_tensor(TensorStorageMetadata tensor);
  /// Adds a chunk of it: the part of `stored`, a tensor that is still in the file `file`, from
  /// `local_offsets` on. The caller has checked that it fits both.
  void add_chunk(std::size_t tensor, const std::string& file, const Tensor& stored, const Box& box,
                 ShapeView local_offsets);
  /// Adds an object. Tensors inside the value are in the file `file`.
  void add_object(std::string key, const std::string& file, Value value);
  /// Adds an object that is the bytes of a file, of at most `limit` bytes, which is read on
  /// request.
  void add_file_object(std::string key, const std::string& file, std::uint64_t limit);

  CheckpointInfo info{};
  Metadata metadata{};
  Value common{};

  const Storage& storage() const noexcept { return *storage_; }

  /// Returns a reader of everything that was added.
  static std::unique_ptr<CheckpointReader> reader(ParsedCheckpoint checkpoint);

 private:
  class Reader;

  struct File {
    Value value{};  ///< content of a torch file
    bool is_torch = false;
    std::uint64_t size = 0;
    std::vector<RecordedCrc> records{};  ///< ordered by offset
  };

  std::uint32_t file_number(const std::string& name);
  File& load(const std::string& name);

  std::shared_ptr<const Storage> storage_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  ///< positions in metadata.files
  std::vector<File> files_;                                 ///< same order as metadata.files
  std::vector<std::vector<ChunkPayload>> payloads_;         ///< payloads of the tensors' chunks
  struct Object {
    Value value{};
    /// If set, the object is its file's bytes, at most this many.
    std::optional<std::uint64_t> limit{};
  };
  std::vector<Object> objects_;  ///< same order as metadata.objects
};

}  // namespace dckpt
