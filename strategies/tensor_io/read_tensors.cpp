// How tensor bytes get from files to destinations.
//
// Items are sorted by file and position and become jobs, which threads take one after the other:
//   * Small stored chunks that lie close together are read with one request into the thread's
//     staging buffer and copied from there: for many small tensors the number of requests counts,
//     not the bytes.
//   * A chunk that has to be decoded is decoded by its reader, and read like a large one; from
//     the staging buffer if it got there with others.
//   * Of a large chunk exactly the wanted ranges are read, straight into the destination where a
//     run is long enough, through the staging buffer where many short runs lie close together, or
//     where elements are cast.
// Large items are split first, so that threads share them and progress advances.
//
// Every thread gets an equal part of the staging memory, which also limits the number of threads.

#include "strategies/tensor_io/read_tensors.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/text.h"
#include "mapping/base/windowed_file.h"
#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kSplitBytes = std::uint64_t{16} << 20;  // items above are split over jobs
constexpr std::uint64_t kSmallChunk =
    std::uint64_t{256} << 10;  // chunks up to this size are read whole, several at once
constexpr std::uint64_t kTinyChunk = std::uint64_t{16} << 10;  // … even if little of them is wanted
constexpr std::uint64_t kBatchBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kBatchGap = std::uint64_t{32}
                                    << 10;  // unwanted bytes between two chunks of a batch
constexpr std::uint64_t kStagedGap =
    2048;  // reading over a gap up to this is cheaper than another request
constexpr std::uint64_t kSharedGap =
    20;  // where others read, too: at most one unwanted byte for so many wanted ones
constexpr std::uint64_t kDirectRun = std::uint64_t{64}
                                     << 10;  // runs from this length are read straight into place

/// Adds its reads to a total when it is closed: one counter for all threads and reads would be the
/// busiest cache line of the job.
class CountedFile : public ReadableFile {
 public:
  CountedFile(std::unique_ptr<ReadableFile> file, std::atomic<std::uint64_t>& total)
      : file_(std::move(file)), total_(total) {}
  ~CountedFile() override { total_ += bytes_; }
  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    file_->read(offset, into);
    bytes_.fetch_add(into.size(), std::memory_order_relaxed);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_->prefetch(offset, length);
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  mutable std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<std::uint64_t>& total_;
};

/// An item, or a part of one that is large.
struct Part : ReadItem {
  std::size_t whole = 0;  // position of the item it is of
};

struct Job {
  std::size_t first = 0;  // range of the sorted parts, all of one file
  std::size_t last = 0;
  bool batch = false;   // several chunks, read with one request
  bool checked = true;  // what passes is compared with its checksum
};

/// A file is open from its first job to its last: a checkpoint of thousands of ranks has more files
/// than a process may open.
struct OpenFile {
  std::shared_ptr<const ReadableFile> file;
  std::size_t jobs = 0;
};

class TensorReadEngine {
 public:
  TensorReadEngine(const CheckpointReader& reader, std::span<const ReadItem> items,
                   std::span<const Tensor> destinations, const ReadOptions& options)
      : reader_(reader),
        metadata_(reader.metadata()),
        wholes_(items),
        destinations_(destinations),
        options_(options),
        own_checks_(metadata_),
        checks_(options.checks != nullptr ? *options.checks : own_checks_) {
    threads_ = std::clamp<std::uint64_t>(options.staging / kSmallChunk, 1,
                                         static_cast<std::uint64_t>(std::max(options.threads, 1)));
    staging_size_ = std::min(options.staging / threads_, kBatchBytes);
    for (std::size_t i = 0; i < items.size(); ++i) split({items[i], i});
    std::stable_sort(items_.begin(), items_.end(), [&](const Part& a, const Part& b) {
      const StorageInfo& left = place(a);
      const StorageInfo& right = place(b);
      return std::tie(left.file, left.offset, a.tensor, a.chunk, a.source.offset) <
             std::tie(right.file, right.offset, b.tensor, b.chunk, b.source.offset);
    });
    if (options_.verify) want_chunks();
    make_jobs();
    for (const Job& job : jobs_) ++files_[place(items_[job.first]).file].jobs;
  }

  ReadStats run() {
    const std::size_t threads = std::min<std::size_t>(threads_, jobs_.size());
    parallel_for(threads, static_cast<int>(threads), [this](std::size_t) { work(); });
    files_.clear();
    ReadStats stats{delivered_, bytes_read_};
    if (!options_.verify) {
      stats.bytes_unchecked = delivered_;
    } else if (options_.checks == nullptr) {
      stats.bytes_unchecked = own_checks_.unchecked_bytes();
    }
    return stats;
  }

 private:
  const TensorStorageMetadata& tensor(const ReadItem& item) const {
    return metadata_.tensors[item.tensor];
  }
  const StorageInfo& place(const ReadItem& item) const { return tensor(item).places[item.chunk]; }
  std::uint64_t item_bytes(const ReadItem& item) const {
    return static_cast<std::uint64_t>(numel(item.sizes)) * item_size(tensor(item).properties.dtype);
  }
  bool same_chunk(std::size_t a, std::size_t b) const {
    return items_[a].tensor == items_[b].tensor && items_[a].chunk == items_[b].chunk;
  }

  /// Halves an item along its first long axis until the parts are small enough.
  void split(const Part& item) {
    const auto axis =
        static_cast<std::size_t>(std::find_if(item.sizes.begin(), item.sizes.end(),
                                              [](std::int64_t size) { return size > 1; }) -
                                 item.sizes.begin());
    const std::uint64_t bytes = item_bytes(item);
    if (bytes <= kSplitBytes || axis == item.sizes.size()) {
      items_.push_back(item);
      return;
    }
    const std::int64_t extent = item.sizes[axis];
    const auto parts = std::min<std::int64_t>(
        extent, static_cast<std::int64_t>((bytes + kSplitBytes - 1) / kSplitBytes));
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t first = extent * part / parts;
      Part piece = item;
      piece.sizes[axis] = extent * (part + 1) / parts - first;
      piece.source.offset += first * item.source.strides[axis];
      piece.target.offset += first * item.target.strides[axis];
      if (parts == extent && item_bytes(piece) > kSplitBytes) {
        split(piece);  // one entry of this axis is still too large: go on with the next axis
      } else {
        items_.push_back(std::move(piece));
      }
    }
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const {
    return options_.open ? options_.open(name) : reader_.storage().open(name);
  }

  std::shared_ptr<const ReadableFile> open(std::uint32_t file) {
    const std::lock_guard lock(files_mutex_);
    OpenFile& entry = files_.at(file);
    if (!entry.file)
      entry.file = std::make_shared<CountedFile>(open(metadata_.files[file]), bytes_read_);
    return entry.file;
  }

  void job_done(std::uint32_t file) {
    const std::lock_guard lock(files_mutex_);
    OpenFile& entry = files_.at(file);
    if (--entry.jobs == 0) entry.file.reset();
  }

  /// Items of one place, as [first, last) of the sorted items: of one chunk, or of several that a
  /// rearranged tensor has there.
  std::size_t end_of_place(std::size_t first) const {
    std::size_t last = first + 1;
    while (last < items_.size() && place(items_[first]) == place(items_[last])) ++last;
    return last;
  }

  /// Items of one chunk, likewise.
  std::size_t end_of_chunk(std::size_t first) const {
    std::size_t last = first + 1;
    while (last < items_.size() && same_chunk(first, last)) ++last;
    return last;
  }

  void want_chunks() {
    for (std::size_t first = 0; first < items_.size();) {
      const std::size_t last = end_of_chunk(first);
      checks_.want(number_of(items_[first]), bytes_of(first, last));
      first = last;
    }
  }

  bool worth_reading_whole(std::size_t first, std::size_t last) const {
    const ReadItem& front = items_[first];
    const std::uint64_t length = place(front).length;
    if (place(front).codec != StorageCodec::kPlain) return false;  // it has to be decoded alone
    if (length > std::min(kSmallChunk, staging_size_)) return false;
    if (length <= kTinyChunk && !options_.shared) return true;
    const std::uint64_t wanted = bytes_of(first, last);
    if (!options_.shared) return wanted * 2 >= length;
    return chunk_bytes(front) <= wanted + wanted / kSharedGap && length <= wanted * 2 + kTinyChunk;
  }

  std::uint64_t bytes_of(std::size_t first, std::size_t last) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = first; i < last; ++i) bytes += item_bytes(items_[i]);
    return bytes;
  }

  std::uint64_t chunk_bytes(const ReadItem& item) const {
    return static_cast<std::uint64_t>(numel(tensor(item).chunks.sizes(item.chunk))) *
           item_size(tensor(item).properties.dtype);
  }

  /// Whether the record can become complete, as far as one can see; others may read the rest of it.
  bool worth_checking(std::size_t first, std::size_t last) const {
    return options_.verify &&
           (options_.checks != nullptr || bytes_of(first, last) >= chunk_bytes(items_[first]));
  }

  /// Whether a batch of `span` bytes, `gaps` of them unwanted, goes on to a chunk that begins `gap`
  /// bytes later.
  bool worth_reading_over(std::uint64_t gap, std::uint64_t gaps, std::uint64_t span) const {
    return gap <= kBatchGap && (!options_.shared || gaps + gap <= (span - gaps) / kSharedGap);
  }

  void make_jobs() {
    for (std::size_t first = 0; first < items_.size();) {
      std::size_t last = end_of_place(first);
      if (!worth_reading_whole(first, last)) {
        // Every item is a job of its own, so that threads share a large chunk; short ones of the
        // same place stay together.
        const bool checked = worth_checking(first, last);
        std::uint64_t bytes = 0;
        std::size_t begin = first;
        for (std::size_t i = first; i < last; ++i) {
          bytes += item_bytes(items_[i]);
          if (bytes >= kSplitBytes / 2 || i + 1 == last) {
            jobs_.push_back({begin, i + 1, false, checked});
            begin = i + 1;
            bytes = 0;
          }
        }
        first = last;
        continue;
      }
      const StorageInfo start = place(items_[first]);
      std::uint64_t end = start.offset + start.length;
      std::uint64_t gaps = 0;
      while (last < items_.size()) {
        const StorageInfo& next = place(items_[last]);
        const std::size_t next_last = end_of_place(last);
        const bool fits = next.file == start.file && next.offset >= end &&
                          next.offset + next.length - start.offset <= staging_size_;
        if (!fits || !worth_reading_whole(last, next_last) ||
            !worth_reading_over(next.offset - end, gaps, end - start.offset))
          break;
        gaps += next.offset - end;
        end = next.offset + next.length;
        last = next_last;
      }
      jobs_.push_back({first, last, true, options_.verify});
      first = last;
    }
  }

  void work() {
    Bytes staging;
    try {
      for (std::size_t next = next_job_++; next < jobs_.size() && !failed_; next = next_job_++) {
        const Job& job = jobs_[next];
        const ReadItem& front = items_[job.first];
        const auto file =
            with_context({.key = tensor(front).key}, [&] { return open(place(front).file); });
        job.batch ? read_batch(job, *file, staging) : read_ranges(job, *file, staging);
        job_done(place(front).file);
      }
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  void read_batch(const Job& job, const ReadableFile& file, Bytes& staging) {
    const ReadItem& front = items_[job.first];
    const StorageInfo& last = place(items_[job.last - 1]);
    const std::uint64_t begin = place(front).offset;
    const std::uint64_t end = last.offset + last.length;
    if (!range_fits(begin, end - begin, file.size())) {
      // Some chunk of the batch lies outside the file: read them one by one so that the error names
      // the right one.
      return read_ranges(job, file, staging);
    }
    reserve(staging, end - begin);
    const MutableByteView window(staging.data(), end - begin);
    with_context({.key = tensor(front).key, .file = file.name()},
                 [&] { file.read(begin, window); });
    const WindowedFile windowed(file, begin, window);
    Bytes decoded;
    for (std::size_t first = job.first; first < job.last;) {
      std::size_t next = first + 1;
      while (next < job.last && same_chunk(first, next)) ++next;
      const ChunkPayload payload = locate(items_[first], windowed);
      if (payload.decoded) {
        read_ranges({first, next, false, job.checked}, windowed, decoded);
        first = next;
        continue;
      }
      if (job.checked && payload.record && !checks_.checked(number_of(items_[first]))) {
        const auto& [offset, length, crc] = *payload.record;
        checks_.add(number_of(items_[first]), *payload.record,
                    {offset, offset + length, crc32(window.subspan(offset - begin, length))});
      }
      const std::byte* const elements = window.data() + (payload.offset - begin);
      for (std::size_t i = first; i < next; ++i) {
        payload.contiguous ? copy(items_[i], elements)
                           : copy(as_stored(items_[i], payload), elements);
      }
      first = next;
    }
  }

  void read_ranges(const Job& job, const ReadableFile& file, Bytes& staging) {
    for (std::size_t first = job.first; first < job.last;) {
      std::size_t next = first + 1;
      while (next < job.last && same_chunk(first, next)) ++next;
      const ReadItem& front = items_[first];
      const ChunkPayload payload = locate(front, file);
      const ReadableFile& from = payload.decoded ? *payload.decoded : file;
      with_context({.key = tensor(front).key, .file = file.name()}, [&] {
        PassingRecord record(job.checked ? &checks_ : nullptr, number_of(front), payload.record);
        if (payload.contiguous) {
          for (std::size_t i = first; i < next; ++i)
            read_item(items_[i], from, payload.offset, record, staging);
        } else {
          read_strided(payload, from, first, record, staging);
        }
        record.finish();
      });
      first = next;
    }
  }

  ChunkPayload locate(const ReadItem& item, const ReadableFile& from) const {
    return with_context(
        {.key = tensor(item).key, .file = from.name(), .offset = place(item).offset}, [&] {
          ChunkPayload payload = reader_.locate(item.tensor, item.chunk, from);
          require_sound(payload, item);
          return payload;
        });
  }

  /// A reader may be anybody's: bytes outside the chunk's place are never touched.
  void require_sound(const ChunkPayload& payload, const ReadItem& item) const {
    const ShapeView sizes = tensor(item).chunks.sizes(item.chunk);
    const auto inside = [&](std::uint64_t offset, std::uint64_t length) {
      if (payload.decoded) return range_fits(offset, length, payload.decoded->size());
      return offset >= place(item).offset &&
             range_fits(offset - place(item).offset, length, place(item).length);
    };
    std::optional<std::int64_t> elements = numel(sizes);
    bool sound = payload.dtype == tensor(item).properties.dtype;
    if (!payload.contiguous) {
      sound = sound && payload.strides.size() == sizes.size();
      elements = 1;  // from the first to the last one
      for (std::size_t axis = 0; sound && elements && axis < sizes.size(); ++axis) {
        const auto step = checked_mul(sizes[axis] - 1, payload.strides[axis]);
        sound = payload.strides[axis] >= 0;
        elements = step ? checked_add(*elements, *step) : std::nullopt;
      }
    }
    const auto bytes =
        elements
            ? checked_mul<std::int64_t>(
                  *elements, static_cast<std::int64_t>(item_size(tensor(item).properties.dtype)))
            : std::nullopt;
    sound = sound && bytes && inside(payload.offset, static_cast<std::uint64_t>(*bytes));
    if (sound && payload.record) sound = inside(payload.record->offset, payload.record->length);
    if (sound) return;
    throw CheckpointError(
        ErrorCode::kCorrupt,
        str_format(
            "the elements lie outside the place of their chunk, which has {} bytes, or are not the "
            "expected ones; the checkpoint is damaged, or the reader of format '{}' is wrong",
            grouped(place(item).length), reader_.info().format));
  }

  static ChunkNumber number_of(const ReadItem& item) { return {item.tensor, item.chunk}; }

  void read_item(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
                 PassingRecord& record, Bytes& staging) {
    if (casts(item)) return read_staged(item, file, payload, record, staging);
    const std::size_t size = item_size(tensor(item).properties.dtype);
    const RunPlan plan = plan_runs(item.sizes, item.source, item.target);
    const RunPlan stored = plan_runs(item.sizes, item.source, item.source);
    const std::uint64_t run = static_cast<std::uint64_t>(plan.run) * size;
    // Runs that are broken up only in the destination come through the staging buffer, too.
    if (run < kDirectRun && (plan.run < stored.run || worth_reading_gaps(stored, size)))
      return read_staged(item, file, payload, record, staging);
    if (run < kDirectRun && !plan.counts.empty()) record.give_up();  // too many pieces
    std::byte* const destination = destinations_[item.destination].data();
    for_each_run(plan, [&](std::int64_t source, std::int64_t target) {
      record.read(file, payload + static_cast<std::uint64_t>(source) * size,
                  {destination + static_cast<std::uint64_t>(target) * size, run});
    });
    deliver(item_bytes(item));
  }

  /// From the first element of an item to its last, in bytes.
  std::uint64_t span_of(const ReadItem& item) const {
    std::int64_t span = 1;
    for (std::size_t axis = 0; axis < item.sizes.size(); ++axis)
      span += (item.sizes[axis] - 1) * item.source.strides[axis];
    return static_cast<std::uint64_t>(span) * item_size(tensor(item).properties.dtype);
  }

  /// Whether the gaps between runs that follow each other, on one axis, cost less than a request
  /// for each run.
  bool worth_reading_gaps(std::int64_t run, std::int64_t stride, std::size_t size) const {
    if (stride <= run) return true;
    const auto gap = static_cast<std::uint64_t>(stride - run);
    return options_.shared ? gap <= static_cast<std::uint64_t>(run) / kSharedGap
                           : gap * size <= kStagedGap;
  }
  bool worth_reading_gaps(const RunPlan& stored, std::size_t size) const {
    return stored.counts.empty() ||
           worth_reading_gaps(stored.run, stored.source_strides.back(), size);
  }

  /// Whether all of an item's runs are worth reading together with the gaps between them.
  bool is_dense(const ReadItem& item) const {
    if (options_.shared) return span_of(item) <= item_bytes(item) + item_bytes(item) / kSharedGap;
    const RunPlan stored = plan_runs(item.sizes, item.source, item.source);
    std::int64_t block = stored.run;  // from the first to the last element on the axes so far
    for (std::size_t axis = stored.counts.size(); axis-- > 0;) {
      if (!worth_reading_gaps(block, stored.source_strides[axis],
                              item_size(tensor(item).properties.dtype)))
        return false;
      block += stored.source_strides[axis] * (stored.counts[axis] - 1);
    }
    return true;
  }

  /// Reads blocks that span many short runs and copies the runs out: along the first axis that has
  /// to be cut to fit the staging buffer, or to leave out a gap.
  void read_staged(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
                   PassingRecord& record, Bytes& staging) {
    const std::size_t size = item_size(tensor(item).properties.dtype);
    const std::uint64_t bytes = span_of(item);
    const auto axis =
        static_cast<std::size_t>(std::find_if(item.sizes.begin(), item.sizes.end(),
                                              [](std::int64_t extent) { return extent > 1; }) -
                                 item.sizes.begin());
    if ((bytes <= staging_size_ && is_dense(item)) || axis == item.sizes.size()) {
      reserve(staging, bytes);
      record.read(file, payload + static_cast<std::uint64_t>(item.source.offset) * size,
                  {staging.data(), bytes});
      ReadItem local = item;
      local.source.offset = 0;
      copy(local, staging.data());
      return;
    }
    const std::int64_t half = item.sizes[axis] / 2;
    ReadItem left = item;
    left.sizes[axis] = half;
    ReadItem right = item;
    right.sizes[axis] -= half;
    right.source.offset += half * item.source.strides[axis];
    right.target.offset += half * item.target.strides[axis];
    read_staged(left, file, payload, record, staging);
    read_staged(right, file, payload, record, staging);
  }

  /// A chunk whose elements do not lie row-major: a transposed tensor was stored, say. What is
  /// wanted of it is read in the order of the file, and not in parts, which would be interleaved:
  /// by the first job that comes across the chunk.
  void read_strided(const ChunkPayload& payload, const ReadableFile& from, std::size_t part,
                    PassingRecord& record, Bytes& staging) {
    std::size_t first = part;
    while (first > 0 && same_chunk(first - 1, part)) --first;
    const std::size_t last = end_of_chunk(first);
    {
      const std::lock_guard lock(mutex_);
      if (!strided_.insert(first).second) return;
    }
    std::set<std::size_t> wholes;
    for (std::size_t i = first; i < last; ++i) wholes.insert(items_[i].whole);
    for (const std::size_t whole : wholes)
      read_item(as_stored(wholes_[whole], payload), from, payload.offset, record, staging);
  }

  /// The same elements, addressed as they lie in the file, axes with large strides first.
  ReadItem as_stored(const ReadItem& item, const ChunkPayload& payload) const {
    const Shape dense = row_major_strides(tensor(item).chunks.sizes(item.chunk));
    if (item.source.strides != dense) {
      throw CheckpointError(
          ErrorCode::kUnsupported,
          "a flattened tensor is stored with gaps between its elements; save it contiguously");
    }
    std::vector<std::size_t> order(dense.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::size_t axis) { return payload.strides[axis]; });
    ReadItem stored = item;
    stored.source.offset = 0;
    std::int64_t position = item.source.offset;
    for (std::size_t axis = 0; axis < dense.size(); ++axis) {
      stored.source.offset += position / dense[axis] * payload.strides[axis];
      position %= dense[axis];
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      stored.sizes[i] = item.sizes[order[i]];
      stored.source.strides[i] = payload.strides[order[i]];
      stored.target.strides[i] = item.target.strides[order[i]];
    }
    return stored;
  }

  bool casts(const ReadItem& item) const {
    return destinations_[item.destination].dtype() != tensor(item).properties.dtype;
  }

  void copy(const ReadItem& item, const std::byte* source) {
    const DType dtype = tensor(item).properties.dtype;
    const Tensor& destination = destinations_[item.destination];
    if (casts(item))
      strided_cast(item.sizes, dtype, source, item.source, destination.dtype(), destination.data(),
                   item.target);
    else
      strided_copy(item.sizes, item_size(dtype), source, item.source, destination.data(),
                   item.target);
    deliver(item_bytes(item));
  }

  void deliver(std::uint64_t bytes) {
    const std::uint64_t before = delivered_.fetch_add(bytes);
    constexpr std::uint64_t kReportEvery = std::uint64_t{16} << 20;
    if (options_.progress && before / kReportEvery != (before + bytes) / kReportEvery) {
      const std::lock_guard lock(mutex_);
      options_.progress(before + bytes);
    }
  }

  /// Never two buffers at a time, as they would be while a vector grows.
  static void reserve(Bytes& staging, std::uint64_t bytes) {
    if (staging.size() >= bytes) return;
    staging = Bytes();
    staging = Bytes(bytes);
  }

  const CheckpointReader& reader_;
  const Metadata& metadata_;
  std::span<const ReadItem> wholes_;
  std::span<const Tensor> destinations_;
  const ReadOptions& options_;
  RecordChecks own_checks_;
  RecordChecks& checks_;
  std::uint64_t threads_ = 1;
  std::uint64_t staging_size_ = 0;  ///< of each thread
  std::vector<Part> items_;
  std::vector<Job> jobs_;
  std::map<std::uint32_t, OpenFile> files_;
  std::mutex files_mutex_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::atomic<std::uint64_t> delivered_ = 0;
  std::atomic<std::size_t> next_job_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::set<std::size_t> strided_;  ///< first parts of chunks that do not lie row-major
};

}  // namespace

void check_destinations(const CheckpointReader& reader, std::span<const ReadItem> items,
                        std::span<const Tensor> destinations, bool cast) {
  for (const ReadItem& item : items) {
    const Tensor& destination = destinations[item.destination];
    const TensorStorageMetadata& tensor = reader.metadata().tensors[item.tensor];
    const DType dtype = tensor.properties.dtype;
    const bool fits =
        destination.dtype() == dtype || (cast && can_cast(dtype, destination.dtype()));
    if (!fits || !destination.has_data() || destination.device().kind != Device::Kind::kCpu) {
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          str_format("a destination must be a CPU tensor of the stored dtype {}{}, got {}",
                     to_string(dtype), cast ? ", or of one that it can be cast to" : "",
                     to_string(destination)),
          {.key = tensor.key});
    }
  }
}

ReadStats read_tensors(const CheckpointReader& reader, std::span<const ReadItem> items,
                       std::span<const Tensor> destinations, const ReadOptions& options) {
  check_destinations(reader, items, destinations, options.cast);
  return TensorReadEngine(reader, items, destinations, options).run();
}

Tensor read_box(const CheckpointReader& reader, std::size_t tensor, const Box& box,
                const ReadOptions& options) {
  const Tensor result =
      Tensor::empty(reader.metadata().tensors[tensor].properties.dtype, box.sizes);
  const WantedShard wanted{static_cast<std::uint32_t>(tensor), 0, box, std::nullopt};
  const auto items = plan_reads(reader.metadata(), {&wanted, 1});
  read_tensors(reader, items, {&result, 1}, options);
  return result;
}

}  // namespace dckpt
