#include "strategies/zarr/writer.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "configs/policy/strategy_options.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/storage_name.h"
#include "mapping/planning/chunk_geometry.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/zarr/array_metadata.h"
#include "strategies/zarr/object_name.h"

namespace dckpt {
namespace {

/// The beginning of the names that shards of an array without elements have, since it has no
/// chunks.
constexpr const char* kNoElements = ".empty";

[[noreturn]] void refuse(const std::string& key, const std::string& what) {
  throw_error(ErrorCode::kUnsupported, {.key = key}, what);
}

/// Checks that a key, which becomes the name of a folder, does not look like a file of this or
/// another format.
void require_folder_name(const std::string& key, std::string_view name) {
  constexpr std::array<std::string_view, 6> kEndings{".sync",   ".json",        ".pt",
                                                     ".distcp", ".safetensors", ".txt"};
  const bool taken =
      name.starts_with('.') || name.starts_with("mp_rank_") ||
      std::ranges::any_of(kEndings, [&](std::string_view end) { return name.ends_with(end); });
  if (name.empty() || name.size() > kMaxComponentBytes || taken ||
      name.find('/') != std::string_view::npos)
    refuse(key, str_format("zarr stores every key in a folder of its name, which {} cannot be; "
                           "leave it out (--exclude), or write torch_dist",
                           quote(name)));
}

/// Returns a file's name: "KEY/0.1.0" or "KEY/shard_0.1_1.8.pt".
std::string file_of(const WriteItem& item) {
  if (item.kind == WriteItem::Kind::kObject) {
    const std::size_t slash = item.key.rfind('/');
    const std::string name = item.key.substr(slash + 1) + ".pt";
    const auto parsed = parse_zarr_object_name(name);
    if (slash == std::string::npos || !parsed || parsed->is_truncated())
      refuse(item.key,
             "zarr stores objects of Megatron only, whose keys end in "
             "\"/shard_OFFSET_SHAPE\"");
    require_folder_name(item.key, std::string_view(item.key).substr(0, slash));
    return item.key + ".pt";
  }
  require_folder_name(item.key, item.key);
  if (!zarr_dtype_name(item.properties.dtype))
    refuse(item.key, str_format("zarr has no elements of {}; leave the tensor out (--exclude), or "
                                "write torch_dist",
                                to_string(item.properties.dtype)));
  if (item.nbytes == 0) {
    const Shape& offsets = item.chunk.offsets;
    const bool first = std::ranges::all_of(offsets, [](std::int64_t at) { return at == 0; });
    return join_name(
        item.key, first ? kNoElements : str_format("{}.{}", kNoElements, zarr_chunk_name(offsets)));
  }
  Shape position;
  for (std::size_t axis = 0; axis < item.size.size(); ++axis) {
    const std::int64_t extent = item.chunk.sizes[axis];
    if (item.size[axis] % extent != 0 || item.chunk.offsets[axis] % extent != 0)
      refuse(item.key, str_format("zarr cuts a tensor into chunks of one size, and {} does not "
                                  "divide {} so; save with torch_dist, then convert it",
                                  to_string(item.chunk), to_string(item.size)));
    position.push_back(item.chunk.offsets[axis] / extent);
  }
  return join_name(item.key, zarr_chunk_name(position));
}

/// Refuses a tensor and objects in one folder: readers look for one kind only.
void require_one_kind(const std::set<std::string_view>& tensors,
                      const std::set<std::string_view>& of_objects) {
  for (const std::string_view key : of_objects) {
    if (tensors.contains(key))
      refuse(std::string(key),
             "zarr would store a tensor and objects of this key in one folder, where "
             "readers find the tensor only; leave one out (--exclude), or write "
             "torch_dist");
  }
}

std::string_view folder_of_object(std::string_view key) {
  return key.substr(0, key.rfind('/'));
}

WrittenItems places_of(const SavePlan& plan) {
  std::set<std::string_view> tensors;
  std::set<std::string_view> of_objects;
  for (const WriteItem& item : plan) {
    if (item.kind == WriteItem::Kind::kTensor)
      tensors.insert(item.key);
    else
      of_objects.insert(folder_of_object(item.key));
  }
  require_one_kind(tensors, of_objects);
  WrittenItems written;
  for (const WriteItem& item : plan) {
    written.places.push_back({static_cast<std::uint32_t>(written.files.size()), 0, item.nbytes});
    written.files.push_back(file_of(item));
  }
  return written;
}

/// Checks the place that this writer passed to wrote(); only damaged notes have others.
void require_place(std::span<const StorageInfo> places, const std::string& file) {
  if (places.size() == 1) return;
  throw_error(ErrorCode::kCorrupt, {.file = file},
              "the interrupted attempt put {} into the file, not 1; convert without --resume",
              counted(places.size(), "item"));
}

std::uint64_t write_item(BufferedFile& file, const WriteItem& item, ItemSource& source) {
  if (item.kind == WriteItem::Kind::kObject) {
    file.append(source.object(item));
    return file.position();
  }
  source.tensor(item, [&](ByteView part) { file.append(part); });
  if (file.position() != item.nbytes)
    throw_error(ErrorCode::kInvalidArgument, "the source delivered {} bytes instead of {}",
                file.position(), item.nbytes);
  return item.nbytes;
}

ZarrArray array_of(const TensorStorageMetadata& tensor) {
  ZarrArray array{.shape = tensor.size, .chunk = tensor.size, .dtype = tensor.properties.dtype};
  if (numel(tensor.size) == 0) {
    for (std::int64_t& extent : array.chunk) extent = std::max<std::int64_t>(extent, 1);
  } else if (const auto chunk = regular_chunk(tensor)) {
    array.chunk = *chunk;
  } else {
    refuse(tensor.key, "zarr cuts a tensor into chunks of one size, but these have several");
  }
  return array;
}

class ZarrSaveStrategy final : public SaveStrategy {
 public:
  explicit ZarrSaveStrategy(const SaveOptions& options) : io_(options.io) {
    refuse_options(options.strategy);
    refuse_file_options(io_, "zarr has a file for every chunk");
  }

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    return write_zarr_items(storage, directory, rank, plan, source, io_);
  }
  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    write_zarr_index(storage, directory, metadata, common, io_.fsync);
  }
  std::optional<MarkerFile> marker(const Storage&, const Metadata&,
                                   const CommonState*) const override {
    const CheckpointingConfig config{.sharded_backend = "zarr",
                                     .sharded_backend_version = 1,
                                     .common_backend = "torch",
                                     .common_backend_version = 1};
    return MarkerFile{kConfigFile, to_bytes(write_checkpointing_config(config))};
  }

 private:
  WriteOptions io_;
};

}  // namespace

WrittenItems write_zarr_items(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source, const WriteOptions& io) {
  WrittenItems written = places_of(plan);
  std::set<std::string> folders;
  for (const std::string& name : written.files)
    folders.insert(join_name(directory, name.substr(0, name.rfind('/'))));
  for (const std::string& folder : folders) storage.make_directory(folder);
  parallel_for(plan.size(), io.threads, [&](std::size_t i) {
    with_context({.key = plan[i].key, .rank = rank}, [&] {
      const PlannedFile planned{written.files[i], plan, {&i, 1}};
      if (const auto places = source.written(planned)) {
        require_place(*places, written.files[i]);
        written.places[i].length = places->front().length;
        return;
      }
      BufferedFile file(
          storage.create(join_name(directory, written.files[i]),
                         {.size_hint = plan[i].nbytes, .durable = io.fsync, .engine = io.engine}));
      written.places[i].length = write_item(file, plan[i], source);
      file.finish(io.fsync);
      source.wrote(planned, {&written.places[i], 1});
    });
  });
  return written;
}

void write_zarr_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                      const CommonState* common, bool fsync) {
  std::set<std::string_view> tensors;
  std::set<std::string_view> of_objects;
  for (const TensorStorageMetadata& tensor : metadata.tensors) tensors.insert(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects)
    of_objects.insert(folder_of_object(object.key));
  require_one_kind(tensors, of_objects);  // of all ranks
  std::set<std::string> folders;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    require_folder_name(tensor.key, tensor.key);
    const std::string folder = join_name(directory, tensor.key);
    const std::string description = write_zarray(array_of(tensor));
    storage.make_directory(folder);
    write_small_file(storage, join_name(folder, kZarrayFile), as_bytes(description), fsync);
    folders.insert(folder);
  }
  for (const std::string_view key : of_objects)
    folders.insert(join_name(directory, std::string(key)));
  if (fsync) {
    for (const std::string& folder : folders) storage.sync_directory(folder);
  }
  const CommonState empty(Value::dict());
  write_small_file(storage, join_name(directory, kCommonFile),
                   (common != nullptr ? *common : empty).archive(), fsync);
}

std::unique_ptr<SaveStrategy> make_zarr_save_strategy(const SaveOptions& options) {
  return std::make_unique<ZarrSaveStrategy>(options);
}

WrittenItems measure_zarr(const SaveOptions&, int, const SavePlan& plan) {
  return places_of(plan);
}

}  // namespace dckpt
