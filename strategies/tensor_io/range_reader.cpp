#include "strategies/tensor_io/range_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "strategies/storage/mappable_file.h"
#include "strategies/storage/uncached_file.h"

namespace dckpt {
namespace {

// Runs from this length on are read straight into place.
constexpr std::uint64_t kDirectRun = std::uint64_t{64} << 10;
// Runs from this length on are worth a look at the page cache.
constexpr std::uint64_t kUncached = std::uint64_t{1} << 20;
// Steps of hashing and copying, which stay in the core's cache in between.
constexpr std::size_t kHashedBytes = std::size_t{512} << 10;
constexpr std::int64_t kRunsToMap = 16;  // requests are cheaper for fewer runs

/// Splits an item along the first axis that has several entries; empty for a single element.
std::optional<std::pair<ReadItem, ReadItem>> halve(const ReadItem& item) {
  const auto axis =
      static_cast<std::size_t>(std::find_if(item.sizes.begin(), item.sizes.end(),
                                            [](std::int64_t extent) { return extent > 1; }) -
                               item.sizes.begin());
  if (axis == item.sizes.size()) return std::nullopt;
  std::pair<ReadItem, ReadItem> halves{item, item};
  auto& [left, right] = halves;
  const std::int64_t half = item.sizes[axis] / 2;
  left.sizes[axis] = half;
  right.sizes[axis] -= half;
  right.source.offset += half * item.source.strides[axis];
  right.target.offset += half * item.target.strides[axis];
  return halves;
}

}  // namespace

RangeReader::Way RangeReader::way_of(const ReadItem& item, const RunPlan& plan) const {
  if (!delivery_.takes_reads(item)) return Way::kBuffered;
  const std::size_t size = element(item);
  const std::uint64_t run = static_cast<std::uint64_t>(plan.run) * size;
  if (run >= kDirectRun || plan.counts.empty()) return Way::kRuns;
  const RunPlan stored = plan_runs(item.sizes, item.source, item.source);
  const bool close_together =
      stored.counts.empty() || worth_reading_gaps(stored.run, stored.source_strides.back(), size);
  // Runs that are broken up only in the destination are also read through the buffer.
  return plan.run < stored.run || close_together ? Way::kBuffered : Way::kApart;
}

void RangeReader::read(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
                       PassingRecord& record) {
  const RunPlan plan = plan_runs(item.sizes, item.source, item.target);
  switch (way_of(item, plan)) {
    case Way::kBuffered: return read_buffered(item, file, payload, record);
    case Way::kRuns: return read_runs(item, plan, file, payload, record);
    case Way::kApart: break;
  }
  record.give_up();  // the pieces are too many to check
  read_apart(item, file, payload);
}

bool RangeReader::copy_ends(const ReadItem& item, const ReadableFile& file,
                            const StorageInfo& place, Ends& ends) const {
  constexpr std::uint64_t kWindow = std::uint64_t{1} << 20;
  const auto* const mappable = dynamic_cast<const MappableFile*>(&file);
  if (mappable == nullptr || place.length < 2 * kWindow ||
      way_of(item, plan_runs(item.sizes, item.source, item.target)) != Way::kApart)
    return false;
  const auto copy_head = [&](const std::byte* bytes) {
    std::memcpy(ends.head.data(), bytes, ends.head.size());
  };
  const auto copy_tail = [&](const std::byte* bytes) {
    std::memcpy(ends.tail.data(), bytes + kWindow - ends.tail.size(), ends.tail.size());
  };
  return mappable->with_mapped(place.offset, kWindow, copy_head) &&
         mappable->with_mapped(place.offset + place.length - kWindow, kWindow, copy_tail);
}

void RangeReader::read_runs(const ReadItem& item, const RunPlan& plan, const ReadableFile& file,
                            std::uint64_t payload, PassingRecord& record) {
  const std::size_t size = element(item);
  const std::uint64_t run = static_cast<std::uint64_t>(plan.run) * size;
  for_each_run(plan, [&](std::int64_t source, std::int64_t target) {
    const std::uint64_t offset = payload + static_cast<std::uint64_t>(source) * size;
    const MutableByteView into = delivery_.memory(item, target, run);
    if (!copy_uncached(file, offset, into, record)) record.read(file, offset, into);
  });
  delivery_.arrived(item);
}

bool RangeReader::read_past_cache(const ReadableFile& file, std::uint64_t offset,
                                  std::uint64_t length,
                                  const std::function<void(ByteView)>& take) const {
  if (options_.engine == ReadEngine::kBuffered) return false;
  const auto* const uncached = dynamic_cast<const UncachedFile*>(&file);
  if (uncached == nullptr) return false;
  if (options_.engine == ReadEngine::kAuto && !uncached->is_cold(offset, length)) return false;
  return uncached->read_past_cache(offset, length, take);
}

/// Copies a long run past the page cache. Returns false if that does not pay off.
bool RangeReader::copy_uncached(const ReadableFile& file, std::uint64_t offset,
                                MutableByteView into, PassingRecord& record) {
  if (into.size() < kUncached) return false;
  std::byte* target = into.data();
  return read_past_cache(file, offset, into.size(), [&](ByteView bytes) {
    while (!bytes.empty()) {
      const ByteView step = bytes.first(std::min(bytes.size(), kHashedBytes));
      record.pass(offset, step);
      std::memcpy(target, step.data(), step.size());
      target += step.size();
      offset += step.size();
      bytes = bytes.subspan(step.size());
    }
  });
}

/// Reads short runs whose gaps are not worth reading. Mapped pages count as memory of the process,
/// so only a few are mapped at a time.
void RangeReader::read_apart(const ReadItem& item, const ReadableFile& file,
                             std::uint64_t payload) {
  if (span_of(item) > options_.mapped) {
    if (const auto halves = halve(item)) {
      read_apart(halves->first, file, payload);
      return read_apart(halves->second, file, payload);
    }
  }
  const RunPlan plan = plan_runs(item.sizes, item.source, item.target);
  const bool many = numel(item.sizes) / plan.run >= kRunsToMap;
  if (many && copy_mapped(item, file, payload)) return;
  PassingRecord unchecked(nullptr, {}, std::nullopt);
  read_runs(item, plan, file, payload, unchecked);
}

bool RangeReader::copy_mapped(const ReadItem& item, const ReadableFile& file,
                              std::uint64_t payload) {
  const auto* const mappable = dynamic_cast<const MappableFile*>(&file);
  const std::uint64_t span = span_of(item);
  if (mappable == nullptr || span > options_.mapped) return false;
  ReadItem local = item;
  local.source.offset = 0;
  const std::uint64_t begin =
      payload + static_cast<std::uint64_t>(item.source.offset) * element(item);
  if (!mappable->with_mapped(begin, span,
                             [&](const std::byte* bytes) { delivery_.copy(local, bytes); }))
    return false;
  bytes_mapped_ += bytes_of(item);
  delivery_.arrived(item);
  return true;
}

/// Never holds two buffers at a time, as a growing vector would.
MutableByteView RangeReader::buffer(std::uint64_t bytes) {
  if (buffer_.size() < bytes) {
    buffer_ = Bytes();
    buffer_ = Bytes(bytes);
  }
  return MutableByteView(buffer_).first(bytes);
}

/// Returns the bytes from the first element of an item to its last.
std::uint64_t RangeReader::span_of(const ReadItem& item) const {
  std::int64_t span = 1;
  for (std::size_t axis = 0; axis < item.sizes.size(); ++axis)
    span += (item.sizes[axis] - 1) * item.source.strides[axis];
  return static_cast<std::uint64_t>(span) * element(item);
}

/// Returns whether the gaps between consecutive runs on one axis cost less than a request for each
/// run.
bool RangeReader::worth_reading_gaps(std::int64_t run, std::int64_t stride,
                                     std::size_t size) const {
  if (stride <= run) return true;
  const auto gap = static_cast<std::uint64_t>(stride - run);
  return options_.shared ? gap <= static_cast<std::uint64_t>(run) / kSharedGap
                         : gap * size <= options_.gap;
}

/// Returns whether all runs of an item are worth reading together with the gaps between them.
bool RangeReader::is_dense(const ReadItem& item) const {
  const std::size_t size = element(item);
  if (options_.shared) {
    const std::uint64_t bytes = bytes_of(item);
    return span_of(item) <= bytes + bytes / kSharedGap;
  }
  const RunPlan stored = plan_runs(item.sizes, item.source, item.source);
  std::int64_t block = stored.run;  // from the first to the last element on the axes visited
  for (std::size_t axis = stored.counts.size(); axis-- > 0;) {
    if (!worth_reading_gaps(block, stored.source_strides[axis], size)) return false;
    block += stored.source_strides[axis] * (stored.counts[axis] - 1);
  }
  return true;
}

/// Reads blocks that span many short runs and copies the runs out. Cuts along the first axis that
/// must be cut to fit the buffer or to leave out a gap.
void RangeReader::read_buffered(const ReadItem& item, const ReadableFile& file,
                                std::uint64_t payload, PassingRecord& record) {
  const std::uint64_t bytes = span_of(item);
  const auto halves = halve(item);
  if (halves && (bytes > options_.buffer || !is_dense(item))) {
    read_buffered(halves->first, file, payload, record);
    return read_buffered(halves->second, file, payload, record);
  }
  const MutableByteView block = buffer(bytes);
  record.read(file, payload + static_cast<std::uint64_t>(item.source.offset) * element(item),
              block);
  ReadItem local = item;
  local.source.offset = 0;
  delivery_.put(local, block.data());
}

}  // namespace dckpt
