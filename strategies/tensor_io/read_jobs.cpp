#include "strategies/tensor_io/read_jobs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "strategies/tensor_io/range_reader.h"

namespace dckpt {
namespace {

// Larger items are split over several jobs.
constexpr std::uint64_t kSplitBytes = std::uint64_t{16} << 20;
// Chunks up to this size are read whole, several at once,
constexpr std::uint64_t kSmallChunk = std::uint64_t{256} << 10;
// … and, unless others read too, up to this size even if little of them is wanted.
constexpr std::uint64_t kTinyChunk = std::uint64_t{16} << 10;

std::uint64_t bytes_of_item(const Metadata& metadata, const ReadItem& item) {
  return static_cast<std::uint64_t>(numel(item.sizes)) *
         item_size(metadata.tensors[item.tensor].properties.dtype);
}

bool is_large(const Metadata& metadata, const ReadItem& item) {
  return bytes_of_item(metadata, item) > kSplitBytes;
}

}  // namespace

ReadJobs::ReadJobs(const Metadata& metadata, std::span<const ReadItem> items,
                   const ReadJobOptions& options)
    : metadata_(metadata), options_(options), items_(items) {
  parts_.reserve(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) add(i);
  sort();
  for (std::size_t first = 0; first < parts_.size();) {
    const std::size_t last = end_of_place(first);
    if (worth_reading_whole(first, last)) {
      first = add_batch(first, last);
    } else {
      add_ranges(first, last);
      first = last;
    }
  }
}

const StorageInfo& ReadJobs::place(std::size_t index) const noexcept {
  const ReadItem& item = part(index);
  return metadata_.tensors[item.tensor].places[item.chunk];
}

bool ReadJobs::same_chunk(std::size_t a, std::size_t b) const noexcept {
  return part(a).tensor == part(b).tensor && part(a).chunk == part(b).chunk;
}

std::size_t ReadJobs::first_of_chunk(std::size_t index) const noexcept {
  while (index > 0 && same_chunk(index - 1, index)) --index;
  return index;
}

std::size_t ReadJobs::end_of_chunk(std::size_t index) const noexcept {
  std::size_t last = index + 1;
  while (last < parts_.size() && same_chunk(index, last)) ++last;
  return last;
}

/// A place holds one chunk, or several of a rearranged tensor.
std::size_t ReadJobs::end_of_place(std::size_t first) const noexcept {
  std::size_t last = first + 1;
  while (last < parts_.size() && place(first) == place(last)) ++last;
  return last;
}

std::uint64_t ReadJobs::bytes_of(std::size_t first, std::size_t last) const noexcept {
  std::uint64_t bytes = 0;
  for (std::size_t i = first; i < last; ++i) bytes += bytes_of_item(metadata_, part(i));
  return bytes;
}

std::uint64_t ReadJobs::chunk_bytes(std::size_t index) const noexcept {
  const TensorStorageMetadata& tensor = metadata_.tensors[part(index).tensor];
  return static_cast<std::uint64_t>(numel(tensor.chunks.sizes(part(index).chunk))) *
         item_size(tensor.properties.dtype);
}

void ReadJobs::add(std::size_t item) {
  if (is_large(metadata_, items_[item]))
    cut(item, items_[item]);
  else
    parts_.push_back({item});
}

/// Cuts an item along its first long axis until the parts are small enough.
void ReadJobs::cut(std::size_t item, const ReadItem& from) {
  const auto axis =
      static_cast<std::size_t>(std::find_if(from.sizes.begin(), from.sizes.end(),
                                            [](std::int64_t size) { return size > 1; }) -
                               from.sizes.begin());
  const std::uint64_t bytes = bytes_of_item(metadata_, from);
  const std::int64_t extent = from.sizes[axis];
  const auto parts = std::min<std::int64_t>(
      extent, static_cast<std::int64_t>((bytes + kSplitBytes - 1) / kSplitBytes));
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = extent * part / parts;
    ReadItem piece = from;
    piece.sizes[axis] = extent * (part + 1) / parts - first;
    piece.source.offset += first * from.source.strides[axis];
    piece.target.offset += first * from.target.strides[axis];
    if (parts == extent && is_large(metadata_, piece)) {
      cut(item, piece);  // one entry of this axis is still too large: continue with the next axis
    } else {
      parts_.push_back({item, pieces_.size()});
      pieces_.push_back(std::move(piece));
    }
  }
}

void ReadJobs::sort() {
  struct Position {
    std::uint64_t offset;
    std::int64_t source;
    std::uint32_t file, tensor, chunk;
    std::size_t index;
    auto order() const noexcept { return std::tie(file, offset, tensor, chunk, source, index); }
  };
  std::vector<Position> positions;
  positions.reserve(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const ReadItem& item = part(i);
    positions.push_back(
        {place(i).offset, item.source.offset, place(i).file, item.tensor, item.chunk, i});
  }
  const auto before = [](const Position& a, const Position& b) { return a.order() < b.order(); };
  if (std::ranges::is_sorted(positions, before)) return;
  std::ranges::sort(positions, before);
  std::vector<Part> sorted;
  sorted.reserve(parts_.size());
  for (const Position& position : positions) sorted.push_back(parts_[position.index]);
  parts_ = std::move(sorted);
}

bool ReadJobs::worth_reading_whole(std::size_t first, std::size_t last) const {
  const StorageInfo& info = place(first);
  if (info.codec != StorageCodec::kPlain) return false;  // it must be decoded alone
  if (info.length > std::min(kSmallChunk, options_.batch_bytes)) return false;
  if (info.length <= kTinyChunk && !options_.shared) return true;
  const std::uint64_t wanted = bytes_of(first, last);
  if (!options_.shared) return wanted * 2 >= info.length;
  return chunk_bytes(first) <= wanted + wanted / kSharedGap &&
         info.length <= wanted * 2 + kTinyChunk;
}

/// Returns whether a batch of `span` bytes, `gaps` of them unwanted, should continue with a chunk
/// that begins `gap` bytes later.
bool ReadJobs::worth_reading_over(std::uint64_t gap, std::uint64_t gaps, std::uint64_t span) const {
  return gap <= options_.gap && (!options_.shared || gaps + gap <= (span - gaps) / kSharedGap);
}

/// Returns the position of the part that begins the next job.
std::size_t ReadJobs::add_batch(std::size_t first, std::size_t last) {
  const StorageInfo& start = place(first);
  std::uint64_t end = start.offset + start.length;
  std::uint64_t gaps = 0;
  while (last < parts_.size()) {
    const StorageInfo& next = place(last);
    const std::size_t next_last = end_of_place(last);
    const bool fits = next.file == start.file && next.offset >= end &&
                      next.offset + next.length - start.offset <= options_.job_bytes;
    if (!fits || !worth_reading_whole(last, next_last) ||
        !worth_reading_over(next.offset - end, gaps, end - start.offset))
      break;
    gaps += next.offset - end;
    end = next.offset + next.length;
    last = next_last;
  }
  jobs_.push_back({first, last, true, options_.verify});
  return last;
}

/// Makes every item a job of its own, so that threads share a large chunk. Short items of the same
/// place stay together.
void ReadJobs::add_ranges(std::size_t first, std::size_t last) {
  // True if the record can become complete, as far as can be foreseen; others may read the rest of
  // it.
  const bool checked =
      options_.verify && (options_.checks_go_on || bytes_of(first, last) >= chunk_bytes(first));
  std::uint64_t bytes = 0;
  std::size_t begin = first;
  for (std::size_t i = first; i < last; ++i) {
    bytes += bytes_of_item(metadata_, part(i));
    if (bytes >= kSplitBytes / 2 || i + 1 == last) {
      jobs_.push_back({begin, i + 1, false, checked});
      begin = i + 1;
      bytes = 0;
    }
  }
}

}  // namespace dckpt
