#include "strategies/views/concatenated_reader.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/rearrange.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/storage/forwarding.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/staging.h"

namespace dckpt {
namespace {

/// Returns the parts of a tensor that have any of its elements [begin, end).
std::span<const ConcatenatedTensor::Part> parts_in(const ConcatenatedTensor& tensor,
                                                   std::int64_t begin, std::int64_t end) {
  const auto& parts = tensor.parts;
  const auto first = std::ranges::partition_point(
      parts, [&](const auto& part) { return part.begin + numel(part.box.sizes) <= begin; });
  const auto last = std::ranges::partition_point(
      first, parts.end(), [&](const auto& part) { return part.begin < end; });
  return {first, last};
}

/// Returns elements [begin, end) of a tensor, as far as one of its parts has them.
WantedShard wanted_of(const ConcatenatedTensor::Part& part, std::int64_t begin, std::int64_t end,
                      std::uint32_t destination) {
  return {part.tensor, destination, part.box,
          WantedShard::Range{std::max(begin, part.begin) - part.begin,
                             std::min(end, part.begin + numel(part.box.sizes)) - part.begin}};
}

/// The bytes of chunks, one after the other.
struct JoinedChunks {
  struct Chunk {
    std::uint64_t offset = 0;
    std::size_t tensor = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::vector<Chunk> chunks;
  std::uint64_t size = 0;
};

class JoinedFile final : public ReadableFile {
 public:
  JoinedFile(std::string name, const JoinedChunks& joined, const CheckpointReader& source,
             std::span<const ConcatenatedTensor> tensors)
      : name_(std::move(name)), joined_(joined), source_(source), tensors_(tensors) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return joined_.size; }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), joined_.size)) refuse(offset);
    auto chunk = std::ranges::upper_bound(joined_.chunks, offset, {}, &JoinedChunks::Chunk::offset);
    while (!into.empty()) {
      const JoinedChunks::Chunk& from = *std::prev(chunk);
      const std::uint64_t end = chunk == joined_.chunks.end() ? joined_.size : chunk->offset;
      const std::size_t count = std::min<std::uint64_t>(into.size(), end - offset);
      read_elements(from, offset, into.first(count));
      into = into.subspan(count);
      offset += count;
      ++chunk;
    }
  }

 private:
  [[noreturn]] void refuse(std::uint64_t offset) const {
    throw CheckpointError(ErrorCode::kCorrupt,
                          "a read goes past the end of joined tensors, or divides an element",
                          {.file = name_, .offset = offset});
  }

  void read_elements(const JoinedChunks::Chunk& chunk, std::uint64_t offset,
                     MutableByteView into) const {
    const ConcatenatedTensor& tensor = tensors_[chunk.tensor];
    const DType dtype = tensor.properties.dtype;
    const std::size_t item = item_size(dtype);
    if ((offset - chunk.offset) % item != 0 || into.size() % item != 0) refuse(offset);
    const std::int64_t begin =
        chunk.begin + static_cast<std::int64_t>((offset - chunk.offset) / item);
    const std::int64_t end = begin + static_cast<std::int64_t>(into.size() / item);
    std::ranges::fill(into, std::byte{0});
    std::vector<WantedShard> wanted;
    std::vector<Tensor> destinations;
    for (const ConcatenatedTensor::Part& part : parts_in(tensor, begin, end)) {
      wanted.push_back(
          wanted_of(part, begin, end, static_cast<std::uint32_t>(destinations.size())));
      const WantedShard::Range& range = *wanted.back().range;
      const auto at = static_cast<std::size_t>(part.begin + range.begin - begin) * item;
      destinations.emplace_back(dtype, Shape{range.end - range.begin}, Shape{1}, into.data() + at,
                                nullptr);
    }
    with_context({.key = tensor.key}, [&] {
      read_tensors(source_, plan_reads(source_.metadata(), wanted), destinations,
                   {.threads = 1, .staging = kRowStaging, .verify = false});
    });
  }

  std::string name_;
  const JoinedChunks& joined_;
  const CheckpointReader& source_;
  std::span<const ConcatenatedTensor> tensors_;
};

/// The files of a checkpoint, and those of joined chunks.
class WithJoinedFiles final : public ForwardingStorage {
 public:
  WithJoinedFiles(std::shared_ptr<Storage> storage,
                  const std::map<std::string, JoinedChunks>& joined, const CheckpointReader& source,
                  std::span<const ConcatenatedTensor> tensors)
      : ForwardingStorage(std::move(storage)),
        joined_(joined),
        source_(source),
        tensors_(tensors) {}

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const auto found = joined_.find(name);
    if (found == joined_.end()) return ForwardingStorage::open(name);
    return std::make_unique<JoinedFile>(display_path(name), found->second, source_, tensors_);
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    const auto found = joined_.find(name);
    if (found == joined_.end()) return ForwardingStorage::stat(name);
    return FileInfo{name, FileInfo::Kind::kRegular, found->second.size};
  }

 private:
  const std::map<std::string, JoinedChunks>& joined_;
  const CheckpointReader& source_;
  std::span<const ConcatenatedTensor> tensors_;
};

class ConcatenatedReader final : public ForwardingReader {
 public:
  ConcatenatedReader(std::unique_ptr<CheckpointReader> source,
                     std::vector<ConcatenatedTensor> tensors)
      : ForwardingReader(std::move(source)),
        tensors_(std::move(tensors)),
        info_(source_->info()),
        metadata_(source_->metadata()),
        first_(metadata_.tensors.size()) {
    std::map<std::string, std::uint32_t> files;
    std::set<std::uint32_t> read;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      check(tensors_[i]);
      show(i, files);
      for (const ConcatenatedTensor::Part& part : tensors_[i].parts) read.insert(part.tensor);
    }
    // A comparison of files with a manifest needs the files that are read here.
    std::set<std::string> names(info_.index_files.begin(), info_.index_files.end());
    for (const std::uint32_t tensor : read) {
      for (const StorageInfo& place : source_->metadata().tensors[tensor].places) {
        const std::string& name = metadata_.files[place.file];
        if (is_stored_file(name) && names.insert(name).second) info_.index_files.push_back(name);
      }
    }
    // Readers hand out their storage to be read only.
    storage_ = std::make_shared<WithJoinedFiles>(
        std::const_pointer_cast<Storage>(source_->storage().shared_from_this()), joined_, *source_,
        tensors_);
  }

  const CheckpointInfo& info() const noexcept override { return info_; }
  const Metadata& metadata() const noexcept override { return metadata_; }
  const Storage& storage() const noexcept override { return *storage_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    if (tensor < first_) return ForwardingReader::locate(tensor, chunk, file);
    return {.offset = metadata_.tensors[tensor].places[chunk].offset,
            .dtype = tensors_[tensor - first_].properties.dtype,
            .strides = {1}};
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    if (tensor < first_) return ForwardingReader::check_chunk(tensor, chunk, file);
    const ConcatenatedTensor& made = tensors_[tensor - first_];
    const std::int64_t begin = static_cast<std::int64_t>(chunk) * made.chunk;
    const std::int64_t end = std::min(begin + made.chunk, made.size);
    std::vector<WantedShard> wanted;
    for (const ConcatenatedTensor::Part& part : parts_in(made, begin, end))
      wanted.push_back(wanted_of(part, begin, end, 0));
    bool all = true;
    for (const ReadItem& item : plan_reads(source_->metadata(), wanted))
      all = check_stored(item.tensor, item.chunk) && all;
    return all;
  }

 private:
  static void check(const ConcatenatedTensor& tensor) {
    const auto refuse = [&](const std::string& why) {
      throw CheckpointError(ErrorCode::kMismatch,
                            "the parts that are to follow each other do not fit: " + why,
                            {.key = tensor.key});
    };
    std::int64_t end = 0;
    for (const ConcatenatedTensor::Part& part : tensor.parts) {
      const std::int64_t count = numel(part.box.sizes);
      if (part.begin < end || count > tensor.size - part.begin)
        refuse(str_format("{} at {} of {}", counted(count, "element"), part.begin, tensor.size));
      end = part.begin + count;
    }
    if (tensor.chunk < 1 || (tensor.size + tensor.chunk - 1) / tensor.chunk !=
                                static_cast<std::int64_t>(tensor.ranks.size()))
      refuse(str_format("chunks of {} elements for {} ranks", tensor.chunk, tensor.ranks.size()));
  }

  void show(std::size_t number, std::map<std::string, std::uint32_t>& files) {
    const ConcatenatedTensor& tensor = tensors_[number];
    for (const ConcatenatedTensor::Part& part : tensor.parts) {
      const TensorStorageMetadata& from = source_->metadata().tensors.at(part.tensor);
      if (from.properties.dtype != tensor.properties.dtype)
        throw CheckpointError(
            ErrorCode::kMismatch,
            str_format("{} is {}, other parts of this tensor are {}", quote(from.key),
                       to_string(from.properties.dtype), to_string(tensor.properties.dtype)),
            {.key = tensor.key});
    }
    TensorStorageMetadata shown{.key = tensor.key,
                                .properties = tensor.properties,
                                .size = {tensor.size},
                                .chunks = BoxList(1)};
    const std::size_t item = item_size(tensor.properties.dtype);
    for (std::size_t i = 0; i < tensor.ranks.size(); ++i) {
      const std::int64_t begin = static_cast<std::int64_t>(i) * tensor.chunk;
      const std::int64_t end = std::min(begin + tensor.chunk, tensor.size);
      const std::string name = str_format("{}__{}_0.distcp", kJoinedFile, tensor.ranks[i]);
      const auto [file, added] =
          files.try_emplace(name, static_cast<std::uint32_t>(metadata_.files.size()));
      if (added) metadata_.files.push_back(name);
      JoinedChunks& joined = joined_[name];
      const std::uint64_t length = static_cast<std::uint64_t>(end - begin) * item;
      shown.chunks.push_back({{begin}, {end - begin}});
      shown.places.push_back({file->second, joined.size, length});
      joined.chunks.push_back({joined.size, number, begin, end});
      joined.size += length;
    }
    metadata_.tensors.push_back(std::move(shown));
  }

  /// Checks each chunk once, even if several chunks have parts of it.
  bool check_stored(std::uint32_t tensor, std::uint32_t chunk) const {
    const std::lock_guard lock(mutex_);
    const std::pair<std::uint32_t, std::uint32_t> number{tensor, chunk};
    if (!checked_.contains(number)) {
      const TensorStorageMetadata& stored = source_->metadata().tensors[tensor];
      const auto file =
          source_->storage().open(source_->metadata().files[stored.places[chunk].file]);
      with_context({.key = stored.key},
                   [&] { checked_.emplace(number, source_->check_chunk(tensor, chunk, *file)); });
    }
    return checked_.at(number);
  }

  std::vector<ConcatenatedTensor> tensors_;
  CheckpointInfo info_;
  Metadata metadata_;
  std::size_t first_;                           // tensor that is not the source's
  std::map<std::string, JoinedChunks> joined_;  // by file
  std::shared_ptr<const Storage> storage_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::uint32_t, std::uint32_t>, bool> checked_;
};

}  // namespace

std::unique_ptr<CheckpointReader> concatenated_reader(std::unique_ptr<CheckpointReader> source,
                                                      std::vector<ConcatenatedTensor> tensors) {
  return std::make_unique<ConcatenatedReader>(std::move(source), std::move(tensors));
}

}  // namespace dckpt
