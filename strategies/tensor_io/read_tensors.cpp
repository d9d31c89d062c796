// Reading tensor bytes from files to destinations.
//
// Items are sorted by file and position and become jobs (read_jobs), which threads take one after
// the other:
//   * Small stored chunks that lie close together are read with one request into the thread's
//     buffer, or several MiB of them past the page cache, and delivered from there.
//   * An encoded chunk is decoded by its reader and then read like a large one, from the buffer if
//     it was read there with others.
//   * A large chunk is read by exactly the wanted ranges (range_reader), long runs past the page
//     cache if the engine says so.
//
// Every thread gets an equal part of the temporary memory, which also limits the number of threads.

#include "strategies/tensor_io/read_tensors.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>

#include "configs/policy/option_rules.h"
#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/windowed_file.h"
#include "mapping/geometry/cast.h"
#include "strategies/tensor_io/delivery.h"
#include "strategies/tensor_io/open_files.h"
#include "strategies/tensor_io/range_reader.h"
#include "strategies/tensor_io/read_jobs.h"
#include "strategies/tensor_io/stored_chunk.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLeastBuffer = std::uint64_t{256} << 10;  // per thread
constexpr std::uint64_t kMostBuffer = std::uint64_t{1} << 20;     // stays in a core's cache
// Longer windows are hardly faster, and their pages count as memory of the process.
constexpr std::uint64_t kMostMapped = std::uint64_t{8} << 20;
// Small chunks read past the page cache with one request: with the pages around them they fit into
// a block of 4 MiB.
constexpr std::uint64_t kUncachedBatch = (std::uint64_t{4} << 20) - (std::uint64_t{8} << 10);
constexpr std::uint64_t kLeastUncachedBatch = std::uint64_t{1} << 20;

/// Returns the number of threads that are worth their memory: the requested one, or more if the
/// storage serves more requests at once.
std::uint64_t most_threads(const CheckpointReader& reader, const ReadOptions& options) {
  return static_cast<std::uint64_t>(
      std::max({options.threads, reader.storage().capabilities().concurrency, 1}));
}

class TensorReader {
 public:
  TensorReader(const CheckpointReader& reader, std::span<const ReadItem> items,
               std::span<const Tensor> destinations, const ReadOptions& options)
      : reader_(reader),
        metadata_(reader.metadata()),
        wholes_(items),
        options_(options),
        threads_(std::clamp<std::uint64_t>(options.staging / kLeastBuffer, 1,
                                           most_threads(reader, options))),
        buffer_(std::min(options.staging / threads_, kMostBuffer)),
        engine_(options.staging / threads_ < kDirectStaging ? ReadEngine::kBuffered
                                                            : options.engine),
        cheap_gap_(reader.storage().capabilities().cheap_gap),
        own_checks_(metadata_),
        checks_(options.checks != nullptr ? *options.checks : own_checks_),
        delivery_(metadata_, destinations, options.progress, options.delivered),
        files_([this](std::uint32_t file) { return open(metadata_.files[file]); }),
        work_(metadata_, items,
              {.batch_bytes = buffer_,
               .job_bytes = engine_ == ReadEngine::kBuffered ? buffer_ : kUncachedBatch,
               .shared = options.shared,
               .gap = std::max(ReadJobOptions().gap, cheap_gap_),
               .verify = options.verify,
               .checks_go_on = options.checks != nullptr}) {
    if (options_.verify) want_chunks();
    for (const ReadJob& job : work_.jobs()) files_.expect(place(work_.part(job.first)).file);
  }

  ReadStats read() {
    const std::size_t threads = std::min<std::size_t>(threads_, work_.jobs().size());
    parallel_for(threads, static_cast<int>(threads), [this](std::size_t) { work(); });
    files_.close();
    ReadStats stats{.bytes_wanted = delivery_.bytes(),
                    .bytes_read = files_.bytes_read() + bytes_mapped_,
                    .bytes_direct = files_.bytes_direct(),
                    .bytes_mapped = bytes_mapped_};
    if (!options_.verify) {
      stats.bytes_unchecked = stats.bytes_wanted;
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
  static ChunkNumber number_of(const ReadItem& item) { return {item.tensor, item.chunk}; }

  std::unique_ptr<ReadableFile> open(const std::string& name) const {
    return options_.open ? options_.open(name) : reader_.storage().open(name);
  }

  void want_chunks() {
    for (std::size_t first = 0; first < work_.size();) {
      const std::size_t last = work_.end_of_chunk(first);
      checks_.want(number_of(work_.part(first)), work_.bytes_of(first, last));
      first = last;
    }
  }

  void work() {
    RangeReader ranges(metadata_, delivery_,
                       {.buffer = buffer_,
                        .mapped = std::min(options_.staging / threads_, kMostMapped),
                        .engine = engine_,
                        .shared = options_.shared,
                        .gap = std::max(RangeReader::Options().gap, cheap_gap_)});
    try {
      for (std::size_t next = next_job_++; next < work_.jobs().size() && !failed_;
           next = next_job_++) {
        const ReadJob& job = work_.jobs()[next];
        const ReadItem& front = work_.part(job.first);
        const auto file =
            with_context({.key = tensor(front).key}, [&] { return files_.get(place(front).file); });
        job.batch ? read_batch(job, *file, ranges) : read_ranges(job, *file, ranges);
        files_.done(place(front).file);
      }
      bytes_mapped_ += ranges.bytes_mapped();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

  /// Returns the bytes from the beginning of the first place to the end of the last, all in one
  /// file.
  std::uint64_t span_of(std::size_t first, std::size_t last) const {
    const StorageInfo& end = place(work_.part(last - 1));
    return end.offset + end.length - place(work_.part(first)).offset;
  }

  void read_batch(const ReadJob& job, const ReadableFile& file, RangeReader& ranges) {
    if (!range_fits(place(work_.part(job.first)).offset, span_of(job.first, job.last),
                    file.size())) {
      // A chunk of the batch lies outside the file: read them one by one so that the error names
      // the right one.
      return read_ranges(job, file, ranges);
    }
    if (read_batch_past_cache(job, file, ranges)) return;
    for (std::size_t first = job.first; first < job.last;) {
      std::size_t last = first + 1;
      while (last < job.last && span_of(first, last + 1) <= buffer_) ++last;
      const std::uint64_t begin = place(work_.part(first)).offset;
      const MutableByteView window = ranges.buffer(span_of(first, last));
      with_context({.key = tensor(work_.part(first)).key, .file = file.name()},
                   [&] { file.read(begin, window); });
      deliver_batch({first, last, true, job.checked}, file, begin, window, ranges);
      first = last;
    }
  }

  /// Returns false if the batch must be read in another way.
  bool read_batch_past_cache(const ReadJob& job, const ReadableFile& file, RangeReader& ranges) {
    const ReadItem& front = work_.part(job.first);
    const std::uint64_t begin = place(front).offset;
    const std::uint64_t length = span_of(job.first, job.last);
    if (length < kLeastUncachedBatch) return false;
    bool delivered = false;
    with_context({.key = tensor(front).key, .file = file.name()}, [&] {
      ranges.read_past_cache(file, begin, length, [&](ByteView bytes) {
        if (bytes.size() != length) return;  // the disk delivered it in several pieces
        deliver_batch(job, file, begin, bytes, ranges);
        delivered = true;
      });
    });
    return delivered;
  }

  /// `window` holds the file's bytes from `begin` on, with all chunks of the batch.
  void deliver_batch(const ReadJob& job, const ReadableFile& file, std::uint64_t begin,
                     ByteView window, RangeReader& ranges) {
    const WindowedFile windowed(file, begin, window);
    std::optional<RangeReader> decoded;
    for (std::size_t first = job.first; first < job.last;) {
      const ReadItem& item = work_.part(first);
      const std::size_t next = std::min(work_.end_of_chunk(first), job.last);
      const ChunkPayload payload = locate_chunk(reader_, item, windowed);
      if (payload.decoded) {
        if (!decoded) decoded.emplace(metadata_, delivery_, ranges.options());
        read_ranges({first, next, false, job.checked}, windowed, *decoded);
        first = next;
        continue;
      }
      if (job.checked && payload.record && !checks_.checked(number_of(item))) {
        const auto& [offset, length, crc] = *payload.record;
        checks_.add(number_of(item), *payload.record,
                    {offset, offset + length, crc32(window.subspan(offset - begin, length))});
      }
      const std::byte* const elements = window.data() + (payload.offset - begin);
      for (std::size_t i = first; i < next; ++i) {
        const ReadItem& part = work_.part(i);
        payload.contiguous ? delivery_.put(part, elements)
                           : delivery_.put(as_stored(tensor(part), part, payload), elements);
      }
      first = next;
    }
  }

  ChunkPayload locate(const ReadItem& item, const ReadableFile& file,
                      const RangeReader& ranges) const {
    const StorageInfo& at = place(item);
    RangeReader::Ends ends;
    if (ranges.copy_ends(item, file, at, ends)) {
      const WindowedFile with_head(file, at.offset, ends.head);
      const WindowedFile with_ends(with_head, at.offset + at.length - ends.tail.size(), ends.tail);
      ChunkPayload payload = locate_chunk(reader_, item, with_ends);
      if (!payload.decoded) return payload;  // a decoded chunk continues to read from the file
    }
    return locate_chunk(reader_, item, file);
  }

  void read_ranges(const ReadJob& job, const ReadableFile& file, RangeReader& ranges) {
    for (std::size_t first = job.first; first < job.last;) {
      const ReadItem& front = work_.part(first);
      const std::size_t next = std::min(work_.end_of_chunk(first), job.last);
      const ChunkPayload payload = locate(front, file, ranges);
      const ReadableFile& from = payload.decoded ? *payload.decoded : file;
      with_context({.key = tensor(front).key, .file = file.name()}, [&] {
        PassingRecord record(job.checked ? &checks_ : nullptr, number_of(front), payload.record);
        if (payload.contiguous) {
          for (std::size_t i = first; i < next; ++i)
            ranges.read(work_.part(i), from, payload.offset, record);
        } else {
          read_strided(payload, from, first, record, ranges);
        }
        record.finish();
      });
      first = next;
    }
  }

  /// Reads a chunk whose elements are not stored row-major, such as that of a transposed tensor.
  /// The first job that comes across the chunk reads all wanted elements in the order of the file,
  /// because the parts would be interleaved.
  void read_strided(const ChunkPayload& payload, const ReadableFile& from, std::size_t part,
                    PassingRecord& record, RangeReader& ranges) {
    const std::size_t first = work_.first_of_chunk(part);
    {
      const std::lock_guard lock(strided_mutex_);
      if (!strided_.insert(first).second) return;
    }
    std::set<std::size_t> wholes;
    for (std::size_t i = first; i < work_.end_of_chunk(first); ++i) wholes.insert(work_.item_of(i));
    for (const std::size_t whole : wholes) {
      const ReadItem& item = wholes_[whole];
      ranges.read(as_stored(tensor(item), item, payload), from, payload.offset, record);
    }
  }

  const CheckpointReader& reader_;
  const Metadata& metadata_;
  std::span<const ReadItem> wholes_;
  const ReadOptions& options_;
  std::uint64_t threads_;
  std::uint64_t buffer_;  ///< of each thread
  ReadEngine engine_;
  std::uint64_t cheap_gap_;  ///< of the storage
  RecordChecks own_checks_;
  RecordChecks& checks_;
  Delivery delivery_;
  OpenFiles files_;
  ReadJobs work_;
  std::atomic<std::uint64_t> bytes_mapped_ = 0;
  std::atomic<std::size_t> next_job_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex strided_mutex_;
  std::set<std::size_t> strided_;  ///< the first parts of chunks that are not row-major
};

}  // namespace

void check_destinations(const CheckpointReader& reader, std::span<const ReadItem> items,
                        std::span<const Tensor> destinations, bool cast, bool on_devices) {
  for (const ReadItem& item : items) {
    const Tensor& destination = destinations[item.destination];
    const TensorStorageMetadata& tensor = reader.metadata().tensors[item.tensor];
    const DType dtype = tensor.properties.dtype;
    const bool fits =
        destination.dtype() == dtype || (cast && can_cast(dtype, destination.dtype()));
    const bool reachable = on_devices || destination.device().kind == Device::Kind::kCpu;
    if (!fits || !destination.has_data() || !reachable) {
      throw_error(ErrorCode::kInvalidArgument, {.key = tensor.key},
                  "a destination must be a CPU tensor of the stored dtype {}{}, got {}",
                  to_string(dtype), cast ? ", or of one that it can be cast to" : "",
                  to_string(destination));
    }
  }
}

ReadStats read_tensors(const CheckpointReader& reader, std::span<const ReadItem> items,
                       std::span<const Tensor> destinations, const ReadOptions& options) {
  check_destinations(reader, items, destinations, options.cast);
  return TensorReader(reader, items, destinations, options).read();
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
