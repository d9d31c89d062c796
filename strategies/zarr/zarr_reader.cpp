#include "strategies/zarr/zarr_reader.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/zarr/array_metadata.h"
#include "strategies/zarr/object_name.h"

namespace dckpt {
namespace {

constexpr std::string_view kLockSuffix = ".sync";

std::string join(ShapeView numbers) {
  std::string text;
  for (const std::int64_t number : numbers) {
    if (!text.empty()) text += '.';
    text += std::to_string(number);
  }
  return text;
}

/// Turns the directory tree into Metadata, and keeps the chunking of each tensor.
class ZarrScan {
 public:
  explicit ZarrScan(const Storage& storage) : storage_(storage) {
    const std::vector<FileInfo> entries = storage_.list("");
    require_common(entries);
    std::set<std::string, std::less<>> directories;
    for (const FileInfo& entry : entries) {
      if (entry.kind == FileInfo::Kind::kDirectory) directories.insert(entry.name);
    }
    for (const FileInfo& entry : entries) {
      if (entry.name == ".metadata" || entry.name.ends_with(".distcp")) {
        fail(ErrorCode::kCorrupt,
             str_format("metadata.json says zarr, but {} belongs to a torch_dist checkpoint",
                        quote(entry.name)),
             entry.name);
      }
      if (entry.kind == FileInfo::Kind::kOther) {
        fail(ErrorCode::kCorrupt,
             "the checkpoint holds a link or special file " + quote(entry.name), entry.name);
      }
      if (entry.kind == FileInfo::Kind::kDirectory && !is_lock(entry.name, directories))
        scan(entry.name);
    }
  }

  Metadata metadata;
  std::vector<ZarrArray> arrays;  ///< same order as metadata.tensors

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message,
                         const std::string& file) const {
    throw_error(code, {.file = storage_.display_path(file)}, message);
  }

  void require_common(const std::vector<FileInfo>& entries) const {
    const bool found = std::any_of(entries.begin(), entries.end(),
                                   [](const FileInfo& entry) { return entry.name == kCommonFile; });
    if (!found)
      fail(ErrorCode::kIncomplete,
           "the checkpoint has no common.pt, which every zarr checkpoint of Megatron has",
           kCommonFile);
  }

  static bool is_lock(std::string_view name,
                      const std::set<std::string, std::less<>>& directories) {
    return name.ends_with(kLockSuffix) &&
           directories.contains(name.substr(0, name.size() - kLockSuffix.size()));
  }

  void scan(const std::string& key) {
    const std::vector<FileInfo> entries = storage_.list(key);
    const auto has = [&](auto&& test) { return std::any_of(entries.begin(), entries.end(), test); };
    if (has([](const FileInfo& entry) { return entry.name == kZarrayFile; })) {
      scan_array(key, entries);
    } else if (has([](const FileInfo& entry) { return entry.name.starts_with("shard_"); })) {
      scan_objects(key, entries);
    } else if (has([](const FileInfo& entry) {
                 return !entry.name.empty() &&
                        entry.name.find_first_not_of("0123456789.") == std::string::npos;
               })) {
      fail(ErrorCode::kIncomplete, "the array has chunks but no .zarray: the save was interrupted",
           str_format("{}/{}", key, kZarrayFile));
    }
  }

  void scan_array(const std::string& key, const std::vector<FileInfo>& entries) {
    const std::string description = str_format("{}/{}", key, kZarrayFile);
    const auto file = storage_.open(description);
    const ZarrArray array = with_context(
        {.key = key}, [&] { return read_zarray(read_file(*file, kMaxZarrayBytes), file->name()); });

    std::map<std::int64_t, std::pair<Shape, const FileInfo*>>
        found;  // by row-major order of the grid
    const Shape grid = array.grid();
    const auto grid_size = checked_numel(grid);
    if (!grid_size)
      fail(ErrorCode::kCorrupt,
           str_format("'chunks' {} cut the array into too many pieces", to_string(array.chunk)),
           description);
    const Shape grid_strides = row_major_strides(grid);
    for (const FileInfo& entry : entries) {
      const auto position = parse_zarr_chunk_name(entry.name, array.shape.size());
      if (!position) continue;  // .zarray, .zattrs, leftovers of interrupted writes
      std::int64_t index = 0;
      for (std::size_t axis = 0; axis < grid.size(); ++axis) {
        if ((*position)[axis] >= grid[axis]) {
          fail(ErrorCode::kCorrupt,
               str_format("the chunk lies outside the grid {} of array {}", to_string(grid),
                          quote(key)),
               str_format("{}/{}", key, entry.name));
        }
        index += (*position)[axis] * grid_strides[axis];
      }
      found.emplace(index, std::pair{*position, &entry});
    }

    TensorStorageMetadata tensor{.key = key,
                                 .properties = {.dtype = array.dtype},
                                 .size = array.shape,
                                 .chunks = BoxList(array.shape.size())};
    std::int64_t next = 0;
    for (const auto& [index, chunk] : found) {
      if (index != next) break;
      ++next;
      add_chunk(tensor, array, chunk.first, *chunk.second);
    }
    if (next != *grid_size) fail_missing_chunk(key, grid, next);
    metadata.tensors.push_back(std::move(tensor));
    arrays.push_back(array);
  }

  void add_chunk(TensorStorageMetadata& tensor, const ZarrArray& array, const Shape& position,
                 const FileInfo& entry) {
    const std::string name = str_format("{}/{}", tensor.key, entry.name);
    if (entry.kind != FileInfo::Kind::kRegular)
      fail(ErrorCode::kCorrupt, "the chunk is not a regular file", name);
    if (entry.size != array.chunk_bytes()) {
      fail(ErrorCode::kCorrupt,
           str_format("the chunk has {} bytes, but {} elements of {} take {}", grouped(entry.size),
                      to_string(array.chunk), to_string(array.dtype), grouped(array.chunk_bytes())),
           name);
    }
    tensor.chunks.push_back(array.chunk_box(position));
    tensor.places.push_back({.file = add_file(name), .offset = 0, .length = entry.size});
  }

  [[noreturn]] void fail_missing_chunk(const std::string& key, const Shape& grid,
                                       std::int64_t index) const {
    Shape position;
    for (const std::int64_t stride : row_major_strides(grid)) {
      position.push_back(index / stride);
      index %= stride;
    }
    fail(ErrorCode::kIncomplete,
         str_format("a chunk of array {} is missing, so its values are undefined: the save was "
                    "interrupted or a file was lost",
                    quote(key)),
         str_format("{}/{}", key, zarr_chunk_name(position)));
  }

  void scan_objects(const std::string& key, const std::vector<FileInfo>& entries) {
    std::vector<std::pair<ZarrObjectName, const FileInfo*>> objects;
    std::int64_t last_extent = 0;  // lost by early releases
    for (const FileInfo& entry : entries) {
      if (!entry.name.starts_with("shard_")) continue;
      const std::string name = str_format("{}/{}", key, entry.name);
      const auto parsed = parse_zarr_object_name(entry.name);
      if (!parsed)
        fail(ErrorCode::kCorrupt,
             "the file's name is not that of an object, shard_<offset>_<shape>.pt with the offset "
             "inside the shape",
             name);
      if (entry.kind != FileInfo::Kind::kRegular)
        fail(ErrorCode::kCorrupt, "the object is not a regular file", name);
      if (parsed->is_truncated() && parsed->offset.back() == INT64_MAX)
        fail(ErrorCode::kCorrupt, "the object's offset is out of bounds", name);
      if (parsed->is_truncated()) last_extent = std::max(last_extent, parsed->offset.back() + 1);
      objects.emplace_back(*parsed, &entry);
    }
    std::set<std::string> keys;
    for (auto& [name, entry] : objects) {
      if (name.is_truncated()) name.shape.push_back(last_extent);
      std::string unique_key =
          str_format("{}/shard_{}_{}", key, join(name.offset), join(name.shape));
      if (!keys.insert(unique_key).second)
        fail(ErrorCode::kCorrupt, str_format("the object {} is stored twice", quote(unique_key)),
             str_format("{}/{}", key, entry->name));
      metadata.objects.push_back({.key = std::move(unique_key),
                                  .place = {.file = add_file(str_format("{}/{}", key, entry->name)),
                                            .offset = 0,
                                            .length = entry->size}});
    }
  }

  std::uint32_t add_file(const std::string& name) {
    metadata.files.push_back(name);
    return static_cast<std::uint32_t>(metadata.files.size() - 1);
  }

  const Storage& storage_;
};

class ZarrReader final : public CheckpointReader {
 public:
  explicit ZarrReader(std::shared_ptr<const Storage> storage) : storage_(std::move(storage)) {
    if (storage_->stat(kConfigFile)) {
      const auto file = storage_->open(kConfigFile);
      check_common_backend(
          read_checkpointing_config(read_file(*file, kMaxZarrayBytes), file->name()), file->name());
    }
    ZarrScan scan(*storage_);
    metadata_ = std::move(scan.metadata);
    arrays_ = std::move(scan.arrays);
    info_.index_files.emplace_back("metadata.json");
    for (const TensorStorageMetadata& tensor : metadata_.tensors)
      info_.index_files.push_back(str_format("{}/{}", tensor.key, kZarrayFile));
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  Value common_state() const override { return read_common_file(*storage_->open(kCommonFile)); }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk, const ReadableFile&) const override {
    const ZarrArray& array = arrays_.at(tensor);
    const Shape strides = row_major_strides(array.chunk);
    const bool contiguous = is_row_major(metadata_.tensors[tensor].chunks.sizes(chunk), strides);
    return {.offset = metadata_.tensors[tensor].places[chunk].offset,
            .dtype = array.dtype,
            .strides = strides,
            .contiguous = contiguous};
  }

  Bytes object_bytes(std::size_t object) const override {
    const StorageInfo& place = metadata_.objects.at(object).place;
    const auto file = storage_->open(metadata_.files[place.file]);
    Bytes bytes = read_file(*file, place.length);
    check_torch_bytes(bytes, file->name());
    return bytes;
  }

  Value decode_object(std::size_t object, ByteView stored) const override {
    const std::string file =
        storage_->display_path(metadata_.files[metadata_.objects.at(object).place.file]);
    return with_context({.file = file}, [&] { return load_torch_bytes(stored, file); });
  }

  bool check_chunk(std::size_t, std::size_t, const ReadableFile&) const override { return false; }

  bool check_object(std::size_t object) const override {
    const auto file = open_object(object);
    return check_torch_file(*file, 0, file->size());
  }

 private:
  std::unique_ptr<ReadableFile> open_object(std::size_t object) const {
    return storage_->open(metadata_.files[metadata_.objects.at(object).place.file]);
  }

  std::shared_ptr<const Storage> storage_;
  CheckpointInfo info_{.format = "zarr",
                       .version = 1,
                       .producer = "Megatron-Core up to 0.15",
                       .common_file = kCommonFile,
                       .conventions = kZarrConventions};
  Metadata metadata_;
  std::vector<ZarrArray> arrays_;
};

}  // namespace

std::unique_ptr<CheckpointReader> open_zarr(std::shared_ptr<const Storage> storage) {
  return std::make_unique<ZarrReader>(std::move(storage));
}

}  // namespace dckpt
