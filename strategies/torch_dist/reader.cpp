#include "strategies/torch_dist/reader.h"

#include <algorithm>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/torch_dist/decoded_items.h"
#include "strategies/torch_dist/directory.h"
#include "strategies/torch_dist/fsdp_dtensor.h"
#include "strategies/torch_dist/opened_objects.h"

namespace dckpt {
namespace {

/// Typical and maximum size of an archive without its tensor data.
constexpr std::uint64_t kLikelyArchiveOverhead = 4096;
constexpr std::uint64_t kMaxArchiveOverhead = std::uint64_t{1} << 20;
/// The limits of the decoded bytes of a compressed object and tensor.
constexpr std::uint64_t kMaxDecodedObject = std::uint64_t{2} << 30;
constexpr std::uint64_t kMaxDecodedTensor = std::uint64_t{16} << 30;

class TorchDistReader : public CheckpointReader {
 public:
  TorchDistReader(std::shared_ptr<Storage> storage, const TorchDistReadOptions& options)
      : storage_(std::move(storage)), mixed_saves_(options.mixed_saves) {
    TorchDistDirectory directory = read_torch_dist_directory(*storage_, options);
    info_ = std::move(directory.info);
    metadata_ = std::move(directory.metadata);
    common_object_ = std::move(directory.common_object);
    if (info_.conventions.keys_are_paths) open_objects();
    if (info_.conventions.megatron_fsdp && options.stage_local != StageLocal::kKeep)
      check_stages(options.stage_local);
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  Value common_state() const override {
    if (info_.common_file) {
      const auto file = storage_->open(*info_.common_file);
      Value common = read_common_file(*file);
      if (metadata_.common_crc != 0)
        with_context({.file = file->name()}, [&] {
          require_same_save(metadata_.common_crc, content_crc(*file, 0, file->size()));
        });
      return common;
    }
    if (!common_object_) return {};
    const Value stored = decode(*common_object_, stored_bytes(*common_object_));
    const ErrorContext context{.key = common_object_->key,
                               .file = metadata_.files[common_object_->place.file],
                               .offset = common_object_->place.offset};
    return with_context(context, [&] { return require_dict(unwrap_object(stored)); });
  }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const TensorStorageMetadata& entry = metadata_.tensors[tensor];
    const StorageInfo& place = entry.places[chunk];
    return with_context({.key = entry.key, .file = file.name(), .offset = place.offset}, [&] {
      if (opened_ && opened_->has_tensor(tensor)) {
        require_same_save(place.crc, opened_->tensor_crc(tensor));
        return opened_->payload(tensor);
      }
      const auto decoded = decoded_chunk(entry, chunk, file);
      TensorBlob blob = decoded ? locate_tensor_blob(*decoded, 0, decoded->size(), &blobs_)
                                : locate_tensor_blob(file, place.offset, place.length, &blobs_);
      check_blob(entry, entry.chunks.sizes(chunk), blob);
      require_same_save(place.crc, blob.crc.value_or(0));
      ChunkPayload payload{.offset = blob.offset,
                           .dtype = blob.dtype,
                           .strides = std::move(blob.strides),
                           .contiguous = blob.contiguous,
                           .decoded = decoded};
      if (blob.crc) payload.record = {blob.storage_offset, blob.storage_size, *blob.crc};
      return payload;
    });
  }

  Bytes object_bytes(std::size_t object) const override {
    const BytesStorageMetadata& entry = metadata_.objects[object];
    if (!opened_ || !opened_->has_object(object)) return stored_bytes(entry);
    return with_context({.key = entry.key, .file = metadata_.files[entry.place.file]}, [&] {
      require_same_save(entry.place.crc, opened_->object_crc(object));
      return opened_->object_bytes(object);
    });
  }

  /// Decodes the object without a copy of its bytes, which may be many.
  Value object(std::size_t object) const override {
    const BytesStorageMetadata& entry = metadata_.objects[object];
    const StorageInfo& place = entry.place;
    if ((!opened_ || !opened_->has_object(object)) && place.codec == StorageCodec::kPlain) {
      const auto file = storage_->open(metadata_.files[place.file]);
      if (range_fits(place.offset, place.length, file->size())) {
        Value value =
            with_context({.key = entry.key, .file = file->name(), .offset = place.offset}, [&] {
              Value stored = load_torch_file(*file, place.offset, place.length);
              if (place.crc != 0)
                require_same_save(place.crc, content_crc(*file, place.offset, place.length));
              return stored;
            });
        return info_.conventions.objects_in_lists ? unwrap_object(value) : value;
      }
    }
    return CheckpointReader::object(object);
  }

  Value decode_object(std::size_t object, ByteView stored) const override {
    const BytesStorageMetadata& entry = metadata_.objects[object];
    const Value value = decode(entry, stored);
    return info_.conventions.objects_in_lists ? unwrap_object(value) : value;
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    if (opened_ && opened_->has_tensor(tensor)) return opened_->check_tensor(tensor);
    const TensorStorageMetadata& entry = metadata_.tensors[tensor];
    const StorageInfo& place = entry.places[chunk];
    return with_context({.key = entry.key, .file = file.name(), .offset = place.offset}, [&] {
      const auto decoded = decoded_chunk(entry, chunk, file);
      return decoded ? check_tensor_blob(*decoded, 0, decoded->size())
                     : check_tensor_blob(file, place.offset, place.length);
    });
  }

  bool check_object(std::size_t object) const override {
    if (opened_ && opened_->has_object(object)) return opened_->check_object(object);
    const BytesStorageMetadata& entry = metadata_.objects[object];
    const auto file = storage_->open(metadata_.files[entry.place.file]);
    return with_context(
        {.key = entry.key, .file = file->name(), .offset = entry.place.offset}, [&] {
          const auto decoded = decoded_object(entry, *file);
          return decoded ? check_torch_file(*decoded, 0, decoded->size())
                         : check_torch_file(*file, entry.place.offset, entry.place.length);
        });
  }

 private:
  void check_stages(StageLocal stage_local) {
    const auto args = std::ranges::find(metadata_.objects, "args", &BytesStorageMetadata::key);
    if (args == metadata_.objects.end() || count_pipeline_stages(metadata_) < 2) return;
    with_context({.file = storage_->display_path(kMetadataFile)}, [&] {
      const Value said = object(static_cast<std::size_t>(args - metadata_.objects.begin()));
      if (stage_local == StageLocal::kRenumber)
        renumber_layers(metadata_, said);
      else
        check_layers(metadata_, said);
    });
  }

  void open_objects() {
    opened_.emplace(metadata_, *storage_);
    if (opened_->empty()) return opened_.reset();
    info_.opened_keys = opened_->keys();
    info_.conventions.records = false;  // several tensors share one
  }

  /// Checks that an archive is what the metadata promises: torch would cast or reshape silently.
  static void check_blob(const TensorStorageMetadata& entry, ShapeView sizes,
                         const TensorBlob& blob) {
    if (blob.dtype != entry.properties.dtype) {
      throw_error(ErrorCode::kCorrupt, "the stored tensor is {}, but .metadata says {}",
                  to_string(blob.dtype), to_string(entry.properties.dtype));
    }
    if (equal(blob.shape, sizes)) return;
    // A reformulated fragment may be stored without its axes of extent 1; anything else with the
    // same elements is not the same tensor.
    const bool is_fragment = blob.contiguous && blob.shape.size() == 1 && !sizes.empty() &&
                             blob.shape[0] == sizes.back() && numel(sizes) == sizes.back();
    if (!is_fragment) {
      throw_error(ErrorCode::kCorrupt, "the stored tensor has the shape {}, but .metadata says {}",
                  to_string(blob.shape), to_string(sizes));
    }
  }

  /// Returns the decoded item; null if it is not compressed.
  std::shared_ptr<const ReadableFile> decoded_chunk(const TensorStorageMetadata& entry,
                                                    std::size_t chunk,
                                                    const ReadableFile& file) const {
    const StorageInfo& place = entry.places[chunk];
    if (place.codec == StorageCodec::kPlain) return nullptr;
    const auto count = checked_numel(entry.chunks.sizes(chunk));
    const auto elements =
        count ? checked_mul(*count, static_cast<std::int64_t>(item_size(entry.properties.dtype)))
              : std::nullopt;
    if (!elements || static_cast<std::uint64_t>(*elements) > kMaxDecodedTensor) {
      throw_error(ErrorCode::kUnsupported, {.key = entry.key},
                  "a compressed tensor of more than {} is not decoded; save the checkpoint "
                  "without compression",
                  human_bytes(kMaxDecodedTensor));
    }
    const auto bytes = static_cast<std::uint64_t>(*elements);
    return decoded_.get(file, opening(place), place, bytes + kLikelyArchiveOverhead,
                        bytes + kMaxArchiveOverhead);
  }
  std::shared_ptr<const ReadableFile> decoded_object(const BytesStorageMetadata& entry,
                                                     const ReadableFile& file) const {
    if (entry.place.codec == StorageCodec::kPlain) return nullptr;
    return decoded_.get(file, opening(entry.place), entry.place, entry.place.length,
                        kMaxDecodedObject);
  }
  DecodedItems::Open opening(const StorageInfo& place) const {
    return [storage = storage_, name = metadata_.files[place.file]] { return storage->open(name); };
  }

  Bytes stored_bytes(const BytesStorageMetadata& entry) const {
    const auto file = storage_->open(metadata_.files[entry.place.file]);
    return with_context(
        {.key = entry.key, .file = file->name(), .offset = entry.place.offset}, [&] {
          const auto decoded = decoded_object(entry, *file);
          if (!decoded && !range_fits(entry.place.offset, entry.place.length, file->size())) {
            throw_error(ErrorCode::kCorrupt,
                        "the object should have {} bytes here, but the file ends at {}; it is "
                        "truncated or .metadata belongs to another save",
                        entry.place.length, file->size());
          }
          Bytes bytes(decoded ? decoded->size() : entry.place.length);
          decoded ? decoded->read(0, bytes) : file->read(entry.place.offset, bytes);
          check_torch_bytes(bytes, file->name());
          if (entry.place.crc != 0) require_same_save(entry.place.crc, content_crc(bytes));
          return bytes;
        });
  }

  /// Checks that the CRC in the archive, `found` (0: it has no CRCs), is that in .metadata, `told`
  /// (0: not given).
  void require_same_save(std::uint32_t told, std::uint32_t found) const {
    if (told == 0 || told == found || mixed_saves_ == MixedSaves::kAccept) return;
    throw_error(
        ErrorCode::kCorrupt,
        "the file is of another save than .metadata: its CRC-32 here is {}, but {} was "
        "written with .metadata. Was one of the two replaced, copied from another checkpoint, "
        "or edited? `dckpt verify` names all files; if every data file is named, .metadata is "
        "the one that does not belong. To load what is there, set load: {{backend: {{name: "
        "{}, options: {{mixed_saves: accept}}}}}}",
        found == 0 ? "missing" : std::to_string(found), told, info_.format);
  }

  Value decode(const BytesStorageMetadata& entry, ByteView bytes) const {
    const std::string& file = metadata_.files[entry.place.file];
    return with_context(
        {.key = entry.key, .file = storage_->display_path(file), .offset = entry.place.offset},
        [&] { return load_torch_bytes(bytes, storage_->display_path(file)); });
  }

  std::shared_ptr<Storage> storage_;
  MixedSaves mixed_saves_;
  CheckpointInfo info_;
  Metadata metadata_;
  std::optional<BytesStorageMetadata> common_object_;
  std::optional<OpenedObjects> opened_;
  DecodedItems decoded_;
  mutable TensorBlobCache blobs_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_torch_dist(std::shared_ptr<Storage> storage,
                                                  const TorchDistReadOptions& options) {
  return std::make_unique<TorchDistReader>(std::move(storage), options);
}

}  // namespace dckpt
