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

/// A checkpoint whose files were parsed when it was opened, for formats that have no index of where
/// the elements are: its chunks are parts of the tensors that torch.save or others wrote, and its
/// objects are values. A backend fills it, and reads() it.
class ParsedCheckpoint {
 public:
  explicit ParsedCheckpoint(std::shared_ptr<const Storage> storage)
      : storage_(std::move(storage)) {}

  /// A torch file, with its tensors left where they are. Throws CheckpointError as load_torch_file
  /// does.
  const Value& torch_file(const std::string& name);

  /// The tensor `key`, in whose metadata there are no chunks yet.
  std::size_t add_tensor(TensorStorageMetadata tensor);
  /// A chunk of it: a part of `stored`, a tensor that is still in the file `file`, from
  /// `local_offsets` on. The caller has checked that it fits both.
  void add_chunk(std::size_t tensor, const std::string& file, const Tensor& stored, const Box& box,
                 ShapeView local_offsets);
  /// Tensors inside the value are in the file `file`.
  void add_object(std::string key, const std::string& file, Value value);
  /// An object that is the bytes of the file, which is read when they are asked for.
  void add_file_object(std::string key, const std::string& file, std::uint64_t limit);

  CheckpointInfo info{};
  Metadata metadata{};
  Value common{};

  const Storage& storage() const noexcept { return *storage_; }

  /// What has been added, as a reader.
  static std::unique_ptr<CheckpointReader> reader(ParsedCheckpoint checkpoint);

 private:
  class Reader;

  struct File {
    Value value{};  ///< of a torch file
    bool is_torch = false;
    std::uint64_t size = 0;
    std::vector<RecordedCrc> records{};  ///< by offset
  };

  std::uint32_t file_number(const std::string& name);
  File& load(const std::string& name);

  std::shared_ptr<const Storage> storage_;
  std::unordered_map<std::string, std::uint32_t> numbers_;  ///< of metadata.files
  std::vector<File> files_;                                 ///< the same order
  std::vector<std::vector<ChunkPayload>> payloads_;         ///< of the tensors' chunks
  struct Object {
    Value value{};
    std::optional<std::uint64_t> limit{};  ///< the bytes of its file, at most so many
  };
  std::vector<Object> objects_;  ///< of metadata.objects
};

}  // namespace dckpt
