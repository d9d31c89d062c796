#include "strategies/views/rearranged_reader.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/planning/load/distribution.h"
#include "strategies/contract/common_state.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/storage/forwarding.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kElementsStaging = std::uint64_t{4} << 20;  // of each read

/// Elements that are in no file: zeros.
class Zeros final : public ReadableFile {
 public:
  Zeros(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}
  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return size_; }
  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_))
      throw_error(ErrorCode::kCorrupt, {.file = name_, .offset = offset},
                  "a read goes past the end of the zeros");
    std::ranges::fill(into, std::byte{0});
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  std::string name_;
  std::uint64_t size_;
};

/// The files of a checkpoint, and the file of elements that are in none.
class WithMadeFiles final : public ForwardingStorage {
 public:
  /// `made` is the number of bytes of kMadeFile.
  WithMadeFiles(std::shared_ptr<Storage> storage, std::uint64_t made)
      : ForwardingStorage(std::move(storage)), made_(made) {}

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    if (!is_made(name)) return ForwardingStorage::open(name);
    return std::make_unique<Zeros>(display_path(name), size(name));
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    if (!is_made(name)) return ForwardingStorage::stat(name);
    return FileInfo{name, FileInfo::Kind::kRegular, size(name)};
  }

 private:
  static bool is_made(std::string_view name) { return name == kZerosFile || name == kMadeFile; }
  std::uint64_t size(std::string_view name) const {
    return name == kZerosFile ? kZerosBytes : made_;
  }
  std::uint64_t made_;
};

/// The elements of a chunk that are gathered from several parts of a checkpoint.
class GatheredElements final : public MadeChunk {
 public:
  GatheredElements(const ReadableFile& file, DType dtype, const GatheredChunk& chunk,
                   const CheckpointReader& source, std::string key)
      : MadeChunk(file, dtype, chunk.box), chunk_(chunk), source_(source), key_(std::move(key)) {}

 private:
  void make(std::int64_t first, MutableByteView into) const override {
    const auto count = static_cast<std::int64_t>(into.size() / item());
    const Tensor elements(dtype(), Shape{count}, Shape{1}, into.data(), nullptr);
    with_context({.key = key_}, [&] {
      read_tensors(source_, plan_gathering(source_.metadata(), chunk_, first, first + count),
                   {&elements, 1}, {.threads = 1, .staging = kElementsStaging, .verify = false});
    });
  }

  const GatheredChunk& chunk_;
  const CheckpointReader& source_;
  std::string key_;
};

class RearrangedReader final : public CheckpointReader {
 public:
  RearrangedReader(std::unique_ptr<CheckpointReader> source, RearrangedContents contents)
      : source_(std::move(source)),
        info_(source_->info()),
        objects_(std::move(contents.objects)),
        common_(std::move(contents.common)) {
    RearrangedMetadata made = rearrange(source_->metadata(), std::move(contents.tensors));
    metadata_ = std::move(made.metadata);
    origins_ = std::move(made.origins);
    gathered_ = std::move(made.gathered);
    metadata_.paths = std::move(contents.paths);
    if (contents.conventions) info_.conventions = *contents.conventions;
    if (common_) {
      info_.common_file.reset();
      info_.common_places.clear();
      info_.common_object.reset();
    }
    info_.opened_keys.clear();
    std::uint64_t made_bytes = 0;
    const auto made_file = static_cast<std::uint32_t>(metadata_.files.size());
    for (const RearrangedObject& object : objects_) {
      StorageInfo place{};
      if (object.value) {
        place = {made_file, made_bytes, stored_object(*object.value, info_.conventions).size()};
        made_bytes += place.length;
      } else {
        place = source_->metadata().objects.at(object.position).place;
      }
      metadata_.objects.push_back({object.key, place});
    }
    if (made_bytes > 0) metadata_.files.emplace_back(kMadeFile);
    add_gathered_files();
    // Readers hand out their storage to be read only.
    storage_ = std::make_shared<WithMadeFiles>(
        std::const_pointer_cast<Storage>(source_->storage().shared_from_this()), made_bytes);
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }
  Value common_state() const override { return common_ ? *common_ : source_->common_state(); }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const ChunkOrigin& origin = origins_[tensor][chunk];
    const TensorStorageMetadata& made = metadata_.tensors[tensor];
    ChunkPayload payload{.offset = 0, .dtype = made.properties.dtype, .strides = {}};
    StridedView elements = origin.elements;
    if (origin.tensor == ChunkOrigin::kGathered) {
      payload.decoded = std::make_shared<GatheredElements>(
          file, payload.dtype, gathered_[origin.chunk], *source_, made.key);
    } else if (origin.tensor != ChunkOrigin::kNothing) {
      payload = source_->locate(origin.tensor, origin.chunk, file);
      if (!payload.contiguous) elements = as_stored(origin, made.chunks.sizes(chunk), payload);
    }
    payload.offset +=
        static_cast<std::uint64_t>(elements.offset) * item_size(made.properties.dtype);
    payload.contiguous = is_row_major(made.chunks.sizes(chunk), elements.strides);
    payload.strides = std::move(elements.strides);
    return payload;
  }

  Bytes object_bytes(std::size_t object) const override {
    const RearrangedObject& entry = objects_[object];
    return entry.value ? stored_object(*entry.value, info_.conventions)
                       : source_->object_bytes(entry.position);
  }
  Value decode_object(std::size_t object, ByteView stored) const override {
    const RearrangedObject& entry = objects_[object];
    return entry.value ? *entry.value : source_->decode_object(entry.position, stored);
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    const ChunkOrigin& origin = origins_[tensor][chunk];
    if (origin.tensor == ChunkOrigin::kGathered) return check_gathered(gathered_[origin.chunk]);
    return origin.tensor == ChunkOrigin::kNothing ||
           source_->check_chunk(origin.tensor, origin.chunk, file);
  }
  bool check_object(std::size_t object) const override {
    return !objects_[object].value && source_->check_object(objects_[object].position);
  }

 private:
  /// Lists the files of gathered chunks. A gathered chunk has the place of one stored chunk, and a
  /// comparison of files with a manifest needs those of the others, too.
  void add_gathered_files() {
    std::set<std::uint32_t> files;
    for (const GatheredChunk& chunk : gathered_) {
      for (const TensorPart& part : chunk.parts) {
        for (const StorageInfo& place : source_->metadata().tensors[part.tensor].places)
          files.insert(place.file);
      }
    }
    for (const std::uint32_t file : files) {
      const std::string& name = metadata_.files[file];
      if (is_stored_file(name) &&
          std::ranges::find(info_.index_files, name) == info_.index_files.end())
        info_.index_files.push_back(name);
    }
  }

  /// Checks the stored chunks that have elements of the chunk, each of them once.
  bool check_gathered(const GatheredChunk& chunk) const {
    std::set<ChunkNumber> stored;
    for (const ReadItem& item :
         plan_gathering(source_->metadata(), chunk, 0, numel(chunk.box.sizes)))
      stored.insert({item.tensor, item.chunk});
    bool all = true;
    for (const ChunkNumber& number : stored) all = check_stored(number) && all;
    return all;
  }

  bool check_stored(const ChunkNumber& number) const {
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = checked_.find(number); known != checked_.end()) return known->second;
    }
    const TensorStorageMetadata& tensor = source_->metadata().tensors[number.tensor];
    const std::string& name = source_->metadata().files[tensor.places[number.chunk].file];
    return with_context({.key = tensor.key}, [&] {
      const auto file = source_->storage().open(name);
      const bool has_checksums = source_->check_chunk(number.tensor, number.chunk, *file);
      const std::lock_guard lock(mutex_);
      return checked_.emplace(number, has_checksums).first->second;
    });
  }

  /// Returns where the elements are if the chunk is stored in another order, since
  /// `origin.elements` counts in the row-major order of the stored chunk.
  StridedView as_stored(const ChunkOrigin& origin, ShapeView sizes,
                        const ChunkPayload& payload) const {
    const ShapeView stored = source_->metadata().tensors[origin.tensor].chunks.sizes(origin.chunk);
    const Shape dense = row_major_strides(stored);
    StridedView view{0, Shape(sizes.size(), 1)};
    std::int64_t position = origin.elements.offset;
    for (std::size_t axis = 0; axis < stored.size(); ++axis) {
      if (dense[axis] == 0) continue;
      view.offset += position / dense[axis] * payload.strides[axis];
      position %= dense[axis];
    }
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      if (sizes[axis] <= 1) continue;
      // `from` is the stored axis of which all entries, or every n-th, are this far apart.
      const std::int64_t stride = origin.elements.strides[axis];
      std::size_t from = 0;
      while (from < stored.size() && (stored[from] <= 1 || dense[from] > stride)) ++from;
      if (from == stored.size() || stride % dense[from] != 0 ||
          stride / dense[from] * (sizes[axis] - 1) >= stored[from])
        throw_error(
            ErrorCode::kUnsupported,
            "the elements of a stored tensor lie with gaps or in another order, but have to be "
            "taken one after the other; convert the checkpoint once without changing its keys");
      view.strides[axis] = stride / dense[from] * payload.strides[from];
    }
    return view;
  }

  std::unique_ptr<CheckpointReader> source_;
  CheckpointInfo info_;
  Metadata metadata_;
  std::vector<std::vector<ChunkOrigin>> origins_;
  std::vector<GatheredChunk> gathered_;
  std::vector<RearrangedObject> objects_;
  std::optional<Value> common_;
  std::shared_ptr<const Storage> storage_;
  mutable std::mutex mutex_;
  mutable std::map<ChunkNumber, bool> checked_;  // stored chunks that others were gathered from
};

}  // namespace

std::unique_ptr<CheckpointReader> rearranged_reader(std::unique_ptr<CheckpointReader> source,
                                                    RearrangedContents contents) {
  return std::make_unique<RearrangedReader>(std::move(source), std::move(contents));
}

View rearranged_view(std::unique_ptr<CheckpointReader> source, Rearrangement made) {
  return {rearranged_reader(std::move(source), std::move(made.contents)), std::move(made.findings)};
}

}  // namespace dckpt
