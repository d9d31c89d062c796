#include "strategies/torch_dist/data_file.h"

#include <algorithm>
#include <span>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/storage_name.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/formats/zstd/zstd.h"
#include "strategies/storage/buffered_file.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kPageSize = 4096;
// The bytes that one thread writes before it takes the next section: enough for a few large
// requests, few enough that all threads end at about the same time, and that items are taken nearly
// in their order.
constexpr std::uint64_t kSectionBytes = std::uint64_t{16} << 20;
// A tensor that several threads write is cut into sections (except its last) longer than the whole
// file divided by the threads and by this.
constexpr std::uint64_t kSectionsPerThread = 8;
// The bytes that are hashed, then copied, and stay in the core's cache in between. Used only where
// the process does the copying: elsewhere fewer system calls are worth more than the cache.
constexpr std::size_t kHashedBytes = std::size_t{512} << 10;

std::size_t step_of(IoEngine engine) {
  return engine == IoEngine::kDirect ? kHashedBytes : SIZE_MAX;
}

/// Appends the `expected` bytes that `deliver` hands to its argument to `file`, a SectionBuffer or
/// ZstdEncoder, and returns their CRC if there are checksums. `most` is the number of bytes to hash
/// and append at a time.
template <typename File, typename Deliver>
std::uint32_t write_elements(File& file, const WriteItem& item, std::uint64_t expected,
                             bool checksums, std::size_t most, Deliver&& deliver) {
  std::uint32_t crc = 0;
  std::uint64_t delivered = 0;
  deliver([&](ByteView piece) {
    delivered += piece.size();
    while (!piece.empty()) {
      const ByteView step = piece.first(std::min(piece.size(), most));
      if (checksums) crc = crc32(step, crc);
      file.append(step);
      piece = piece.subspan(step.size());
    }
  });
  if (delivered != expected) {
    throw_error(ErrorCode::kInvalidArgument, {.key = item.key},
                "the source delivered {} bytes instead of {}", delivered, expected);
  }
  return crc;
}

/// Writes a tensor's archive and returns StorageInfo::crc. `position` is where it begins in `file`.
template <typename File>
std::uint32_t write_tensor(File& file, std::uint64_t position, const WriteItem& item,
                           const DataFileTarget& target, ItemSource& source, std::size_t most) {
  const auto blob = blob_of(target.blobs, item, position);
  file.append(blob->head());
  const std::uint32_t crc =
      write_elements(file, item, blob->payload_size(), target.io.checksums, most,
                     [&](const auto& sink) { source.tensor(item, sink); });
  file.append(blob->tail(crc));
  return crc;
}

template <typename File>
std::uint32_t write_item(File& file, std::uint64_t position, const WriteItem& item,
                         const DataFileTarget& target, ItemSource& source, std::size_t most) {
  if (item.kind == WriteItem::Kind::kTensor)
    return write_tensor(file, position, item, target, source, most);
  const Bytes object = source.object(item);
  file.append(object);
  return content_crc(object);
}

/// Checks the places that were passed to wrote(); only damaged notes have others.
void require_places(const std::vector<StorageInfo>& places, std::size_t items,
                    const std::string& file) {
  if (places.size() == items) return;
  throw_error(ErrorCode::kCorrupt, {.file = file},
              "the interrupted attempt put {} into the file, not {}",
              counted(places.size(), "item"), items);
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
  plan_sections();
  left_ = sections_.size();
}

/// Makes a section a large part of a thread's work: cutting all tensors into short sections made
/// durable saves slower.
std::size_t DataFileWriter::parts_of_section() const {
  const auto threads = static_cast<std::uint64_t>(std::max(target_.io.threads, 1));
  if (threads == 1) return 0;
  std::uint64_t bytes = 0;
  for (const std::size_t i : items_) bytes += target_.plan[i].nbytes;
  return static_cast<std::size_t>(bytes / (kSectionsPerThread * threads) / ItemSource::kPartBytes) +
         1;
}

void DataFileWriter::plan_sections() {
  const auto item = [&](std::size_t i) -> const WriteItem& { return target_.plan[items_[i]]; };
  const std::size_t most = parts_of_section();
  const auto is_shared = [&](std::size_t i) {
    return most > 0 && item(i).nbytes > most * ItemSource::kPartBytes &&
           target_.source.has_parts(item(i));
  };
  std::size_t begin = 0;
  while (begin < items_.size() && item(begin).kind == WriteItem::Kind::kObject) ++begin;
  do {
    std::size_t end = begin;
    if (begin < items_.size() && is_shared(begin)) {
      const auto parts =
          static_cast<std::size_t>((item(begin).nbytes - 1) / ItemSource::kPartBytes + 1);
      SharedTensor& tensor = shared_.emplace_back(parts);
      ++end;
      for (std::size_t part = 0; part < parts; part += most)
        sections_.push_back({begin, end, &tensor, part, std::min(part + most, parts)});
    } else {
      for (std::uint64_t bytes = 0; end < items_.size() && bytes < kSectionBytes && !is_shared(end);
           ++end)
        bytes += item(end).nbytes + kBlobOverhead;
      sections_.push_back({begin, end});
    }
    begin = end;
  } while (begin < items_.size());
}

void DataFileWriter::write(std::size_t section) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(begun_, true)) begin();
    if (!file_) return;  // the file is complete, or the call that began it failed
  }
  const Section& planned = sections_[section];
  if (planned.tensor != nullptr) {
    write_parts(planned);
  } else if (planned.begin < planned.end) {
    const auto part = file_->section(places_[planned.begin].offset);
    write_items(*part, file_->engine(), planned.begin, planned.end);
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
  const auto in_order =
      target_.source.in_order(target_.plan, std::span(items_).subspan(begin, end - begin));
  ItemSource& source = in_order ? *in_order : target_.source;
  SectionBuffer out(section, engine);
  for (std::size_t k = begin; k < end; ++k) {
    const WriteItem& item = target_.plan[items_[k]];
    const std::uint64_t start = out.position();
    const std::uint32_t crc = with_context({.key = item.key, .rank = target_.rank}, [&] {
      if (target_.codec == StorageCodec::kPlain)
        return write_item(out, start, item, target_, source, step_of(engine));
      ZstdEncoder frame([&](ByteView part) { out.append(part); });
      const std::uint32_t of_item = write_item(frame, 0, item, target_, source, step_of(engine));
      frame.finish();
      return of_item;
    });
    places_[k] = {0, start, out.position() - start, target_.codec, crc};
  }
  out.flush();
}

void DataFileWriter::write_parts(const Section& section) {
  constexpr std::uint64_t kPart = ItemSource::kPartBytes;
  const WriteItem& item = target_.plan[items_[section.begin]];
  const std::uint64_t position = places_[section.begin].offset;
  SharedTensor& tensor = *section.tensor;
  with_context({.key = item.key, .rank = target_.rank}, [&] {
    const auto blob = blob_of(target_.blobs, item, position);
    const std::uint64_t elements = position + blob->head().size();
    const auto size_of = [&](std::size_t part) {
      return std::min(kPart, blob->payload_size() - part * kPart);
    };
    const bool first = section.first_part == 0;
    const auto file = file_->section(first ? position : elements + section.first_part * kPart);
    SectionBuffer out(*file, file_->engine());
    if (first) out.append(blob->head());
    for (std::size_t part = section.first_part; part < section.end_part; ++part) {
      tensor.crcs[part] =
          write_elements(out, item, size_of(part), target_.io.checksums, step_of(file_->engine()),
                         [&](const auto& sink) { target_.source.part(item, part * kPart, sink); });
    }
    out.flush();
    file->close();
    const std::size_t written = section.end_part - section.first_part;
    if ((tensor.left -= written) > 0) return;
    std::uint32_t crc = tensor.crcs.front();
    for (std::size_t part = 1; part < tensor.crcs.size(); ++part)
      crc = crc32_combine(crc, tensor.crcs[part], size_of(part));
    const auto tail = file_->section(elements + blob->payload_size());
    tail->append(blob->tail(crc));
    tail->close();
    places_[section.begin].crc = crc;
  });
}

void DataFileWriter::finish(WritableFile& file) {
  if (target_.io.fsync) file.sync();
  file.close();
  target_.source.wrote(planned(), places_);
}

}  // namespace dckpt
