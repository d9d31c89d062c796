#include "strategies/torch_dist/data_file.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/zstd/zstd.h"
#include "strategies/storage/buffered_file.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kPageSize = 4096;
// What one thread writes before it takes the next: enough for a few large requests, little enough
// that all threads end at about the same time, and that items are taken nearly in their order.
constexpr std::uint64_t kSectionBytes = std::uint64_t{16} << 20;
// What is hashed, then copied, and stays in the core's cache in between. Only where it is copied by
// the process: system calls are worth more than the cache.
constexpr std::size_t kHashedBytes = std::size_t{512} << 10;

std::size_t step_of(IoEngine engine) {
  return engine == IoEngine::kDirect ? kHashedBytes : SIZE_MAX;
}

/// `position`: where the archive begins in `file`, a SectionBuffer or ZstdEncoder. `most`: bytes to
/// hash and append at a time.
template <typename File>
void write_tensor(File& file, std::uint64_t position, const WriteItem& item,
                  const DataFileTarget& target, std::size_t most) {
  const auto blob = blob_of(target.blobs, item, position);
  file.append(blob->head());
  std::uint32_t crc = 0;
  std::uint64_t delivered = 0;
  target.source.tensor(item, [&](ByteView part) {
    delivered += part.size();
    while (!part.empty()) {
      const ByteView step = part.first(std::min(part.size(), most));
      if (target.io.checksums) crc = crc32(step, crc);
      file.append(step);
      part = part.subspan(step.size());
    }
  });
  if (delivered != blob->payload_size()) {
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("the source delivered {} bytes instead of {}", delivered, blob->payload_size()),
        {.key = item.key});
  }
  file.append(blob->tail(crc));
}

template <typename File>
void write_item(File& file, std::uint64_t position, const WriteItem& item,
                const DataFileTarget& target, std::size_t most) {
  if (item.kind == WriteItem::Kind::kObject)
    file.append(target.source.object(item));
  else
    write_tensor(file, position, item, target, most);
}

/// As told to wrote(); only a damaged journal says something else.
void require_places(const std::vector<StorageInfo>& places, std::size_t items,
                    const std::string& file) {
  if (places.size() == items) return;
  throw CheckpointError(ErrorCode::kCorrupt,
                        str_format("the interrupted attempt put {} items into the file, not {}",
                                   places.size(), items),
                        {.file = file});
}

}  // namespace

TensorBlobOptions blob_options(const WriteOptions& io) {
  TensorBlobOptions options;  // requires no gradient: like torch, which detaches what it saves, and
                              // leaves it to the metadata to say so
  options.alignment = io.page_aligned ? kPageSize : 64;
  options.crc = io.checksums;
  return options;
}

std::shared_ptr<const TensorBlobWriter> blob_of(TensorBlobWriters& blobs, const WriteItem& item,
                                                std::uint64_t file_offset) {
  return blobs.at(item.properties.dtype, item.chunk.sizes, file_offset);
}

DataFileWriter::DataFileWriter(const DataFileTarget& target, std::string name,
                               std::vector<std::size_t> items)
    : target_(target), name_(std::move(name)), items_(std::move(items)), places_(items_.size()) {
  const auto kind = [&](std::size_t i) { return target_.plan[items_[i]].kind; };
  std::size_t begin = 0;
  while (begin < items_.size() && kind(begin) == WriteItem::Kind::kObject) ++begin;
  do {
    std::size_t end = begin;
    for (std::uint64_t bytes = 0; end < items_.size() && bytes < kSectionBytes; ++end)
      bytes += target_.plan[items_[end]].nbytes + kBlobOverhead;
    sections_.push_back({begin, end});
    begin = end;
  } while (begin < items_.size());
  left_ = sections_.size();
}

void DataFileWriter::write(std::size_t section) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(begun_, true)) begin();
    if (!file_) return;  // it is complete, or the call that began it failed
  }
  const auto [first, end] = sections_[section];
  if (first < end) {
    const auto part = file_->section(places_[first].offset);
    write_items(*part, file_->engine(), first, end);
    part->close();
  }
  if (--left_ == 0) finish(*file_);
}

void DataFileWriter::begin() {
  if (auto places = target_.source.written(planned())) {
    require_places(*places, items_.size(), name_);
    places_ = std::move(*places);
    return;
  }
  std::uint64_t expected = 0;
  for (const std::size_t i : items_) expected += target_.plan[i].nbytes + kBlobOverhead;
  auto file = target_.storage.create(
      join_name(target_.directory, name_),
      {.size_hint = expected, .durable = target_.io.fsync, .engine = target_.io.engine});
  const auto objects = target_.codec == StorageCodec::kPlain ? file->section(0) : nullptr;
  if (!objects) return write_front_to_back(std::move(file));
  write_items(*objects, file->engine(), 0, sections_.front().begin);
  objects->close();
  std::uint64_t position = objects->position();
  for (std::size_t k = sections_.front().begin; k < items_.size(); ++k) {
    const WriteItem& item = target_.plan[items_[k]];
    places_[k] = {.offset = position,
                  .length = with_context({.key = item.key, .rank = target_.rank}, [&] {
                    return blob_of(target_.blobs, item, position)->size();
                  })};
    position += places_[k].length;
  }
  file_ = std::move(file);
}

void DataFileWriter::write_front_to_back(std::unique_ptr<WritableFile> file) {
  write_items(*file, file->engine(), 0, items_.size());
  finish(*file);
}

void DataFileWriter::write_items(FileSection& section, IoEngine engine, std::size_t begin,
                                 std::size_t end) {
  SectionBuffer out(section, engine);
  for (std::size_t k = begin; k < end; ++k) {
    const WriteItem& item = target_.plan[items_[k]];
    const std::uint64_t start = out.position();
    with_context({.key = item.key, .rank = target_.rank}, [&] {
      if (target_.codec == StorageCodec::kPlain)
        return write_item(out, start, item, target_, step_of(engine));
      ZstdEncoder frame([&](ByteView part) { out.append(part); });
      write_item(frame, 0, item, target_, step_of(engine));
      frame.finish();
    });
    places_[k] = {0, start, out.position() - start, target_.codec};
  }
  out.flush();
}

void DataFileWriter::finish(WritableFile& file) {
  if (target_.io.fsync) file.sync();
  file.close();
  target_.source.wrote(planned(), places_);
}

}  // namespace dckpt
