#include "strategies/torch_dist/writer.h"

#include <algorithm>
#include <span>

#include "configs/separation_hint.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/formats/zstd/zstd.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kPageSize = 4096;
constexpr std::uint64_t kBlobOverhead = 1200;  // of a tensor archive, for reserving space

std::string in_directory(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : str_format("{}/{}", directory, name);
}

TensorBlobWriter blob_of(const WriteItem& item, std::uint64_t file_offset, const WriteOptions& io) {
  TensorBlobOptions options;  // requires no gradient: like torch, which detaches what it saves, and
                              // leaves it to the metadata to say so
  options.alignment = io.page_aligned ? kPageSize : 64;
  options.file_offset = file_offset;
  options.crc = io.checksums;
  return {item.properties.dtype, item.chunk.sizes, options};
}

/// `position`: where the archive begins in `file`, a BufferedFile or ZstdEncoder.
template <typename File>
void write_tensor(File& file, std::uint64_t position, const WriteItem& item, ItemSource& source,
                  const WriteOptions& io) {
  const TensorBlobWriter blob = blob_of(item, position, io);
  file.append(blob.head());
  std::uint32_t crc = 0;
  std::uint64_t delivered = 0;
  source.tensor(item, [&](ByteView part) {
    if (io.checksums) crc = crc32(part, crc);
    file.append(part);
    delivered += part.size();
  });
  if (delivered != blob.payload_size()) {
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("the source delivered {} bytes instead of {}", delivered, blob.payload_size()),
        {.key = item.key});
  }
  file.append(blob.tail(crc));
}

template <typename File>
void write_item(File& file, std::uint64_t position, const WriteItem& item, ItemSource& source,
                const WriteOptions& io) {
  if (item.kind == WriteItem::Kind::kObject)
    file.append(source.object(item));
  else
    write_tensor(file, position, item, source, io);
}

/// Which of `items` go to which file: objects first and round robin, then tensors, largest first to
/// the file with the least bytes. No file is empty.
std::vector<std::vector<std::size_t>> spread(const SavePlan& plan,
                                             std::span<const std::size_t> items,
                                             std::size_t files) {
  std::vector<std::vector<std::size_t>> buckets(files);
  std::vector<std::uint64_t> bytes(files, 0);
  std::vector<std::size_t> tensors;
  std::size_t objects = 0;
  for (const std::size_t i : items) {
    const WriteItem& item = plan[i];
    if (item.kind == WriteItem::Kind::kTensor) {
      tensors.push_back(i);
    } else {
      bytes[objects % files] += item.nbytes;
      buckets[objects++ % files].push_back(i);
    }
  }
  std::vector<std::size_t> by_size = tensors;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::size_t a, std::size_t b) { return plan[a].nbytes > plan[b].nbytes; });
  std::vector<std::size_t> file_of(plan.size(), 0);
  for (const std::size_t i : by_size) {
    const auto least =
        static_cast<std::size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    bytes[least] += plan[i].nbytes + kBlobOverhead;
    file_of[i] = least;
  }
  // Inside a file tensors keep the order of the plan, which is the order in which a whole-model
  // load wants them.
  for (const std::size_t i : tensors) buckets[file_of[i]].push_back(i);
  std::erase_if(buckets, [](const auto& bucket) { return bucket.empty(); });
  return buckets;
}

struct DataFile {
  std::string name;
  std::vector<std::size_t> items;  ///< positions in the plan, in the order of the file
};

/// The rank's files, numbered through: first those of ordinary keys, then those that the hint keeps
/// apart.
std::vector<DataFile> plan_data_files(const SavePlan& plan, int rank, int files_per_rank,
                                      std::string_view hint) {
  std::vector<std::size_t> ordinary;
  std::vector<std::size_t> hinted;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const bool apart =
        !hint.empty() && plan[i].key.starts_with(hint) && plan[i].key != kCommonStateKey;
    (apart ? hinted : ordinary).push_back(i);
  }
  std::vector<DataFile> files;
  const auto add = [&](std::string_view prefix, std::span<const std::size_t> items) {
    for (auto& bucket :
         spread(plan, items, static_cast<std::size_t>(std::max(files_per_rank, 1)))) {
      files.push_back(
          {str_format("{}__{}_{}.distcp", prefix, rank, files.size()), std::move(bucket)});
    }
  };
  add("", ordinary);
  add(hint, hinted);
  return files;
}

/// As told to wrote() by this function; only a damaged journal says something else.
void require_places(std::span<const StorageInfo> places, std::size_t items,
                    const std::string& file) {
  if (places.size() == items) return;
  throw CheckpointError(ErrorCode::kCorrupt,
                        str_format("the interrupted attempt put {} items into the file, not {}",
                                   places.size(), items),
                        {.file = file});
}

}  // namespace

WrittenItems write_data_files(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source, const WriteOptions& io,
                              std::string_view separation_hint, StorageCodec codec) {
  check_separation_hint(separation_hint);
  const std::vector<DataFile> files =
      plan_data_files(plan, rank, io.files_per_rank, separation_hint);
  WrittenItems written;
  written.places.resize(plan.size());
  for (const DataFile& file : files) written.files.push_back(file.name);

  parallel_for(files.size(), io.threads, [&](std::size_t index) {
    const auto& [name, items] = files[index];
    const PlannedFile planned{name, plan, items};
    if (const auto places = source.written(planned)) {
      require_places(*places, items.size(), name);
      for (std::size_t k = 0; k < items.size(); ++k) {
        written.places[items[k]] = (*places)[k];
        written.places[items[k]].file = static_cast<std::uint32_t>(index);
      }
      return;
    }
    std::uint64_t expected = 0;
    for (const std::size_t i : items) expected += plan[i].nbytes + kBlobOverhead;
    BufferedFile file(
        storage.create(in_directory(directory, name),
                       {.size_hint = expected, .durable = io.fsync, .engine = io.engine}));
    std::vector<StorageInfo> places;
    for (const std::size_t i : items) {
      const WriteItem& item = plan[i];
      const std::uint64_t start = file.position();
      with_context({.key = item.key, .rank = rank}, [&] {
        if (codec == StorageCodec::kPlain) return write_item(file, start, item, source, io);
        ZstdEncoder frame([&](ByteView part) { file.append(part); });
        write_item(frame, 0, item, source, io);
        frame.finish();
      });
      places.push_back({static_cast<std::uint32_t>(index), start, file.position() - start, codec});
      written.places[i] = places.back();
    }
    file.finish(io.fsync);
    source.wrote(planned, places);
  });
  return written;
}

WrittenItems measure_data_files(int rank, const SavePlan& plan, const WriteOptions& io,
                                std::string_view separation_hint) {
  check_separation_hint(separation_hint);
  WrittenItems written;
  written.places.resize(plan.size());
  for (const DataFile& file : plan_data_files(plan, rank, io.files_per_rank, separation_hint)) {
    std::uint64_t position = 0;
    for (const std::size_t i : file.items) {
      const std::uint64_t length = plan[i].kind == WriteItem::Kind::kObject
                                       ? plan[i].nbytes
                                       : blob_of(plan[i], position, io).size();
      written.places[i] = {static_cast<std::uint32_t>(written.files.size()), position, length};
      position += length;
    }
    written.files.push_back(file.name);
  }
  return written;
}

void write_markers(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CheckpointMarkers& markers) {
  if (markers.common_file)
    write_small_file(storage, in_directory(directory, kCommonFile), *markers.common_file,
                     markers.fsync);
  write_small_file(storage, in_directory(directory, kMetadataFile), write_dcp_metadata(metadata),
                   markers.fsync);
  if (markers.compat != Compat::kDcp) {
    CheckpointingConfig config;
    if (markers.compat == Compat::kMegatron) {
      config.common_backend = "torch";
      config.common_backend_version = 1;
    }
    write_small_file(storage, in_directory(directory, kConfigFile),
                     as_bytes(write_checkpointing_config(config)), markers.fsync);
  }
}

}  // namespace dckpt
