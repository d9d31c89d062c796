#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "mapping/base/bytes.h"
#include "mapping/base/io_engine.h"
#include "mapping/base/readable_file.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/metadata.h"
#include "strategies/tensor_io/delivery.h"
#include "strategies/tensor_io/record_checks.h"

namespace dckpt {

/// Reads the wanted ranges of chunks, for one thread: straight into the destination where a run is
/// long enough; through a buffer where many short runs lie close together, or where a destination
/// does not take reads; short runs that lie apart are copied out of the mapped file, and long ones
/// past the page cache if the engine says so.
class RangeReader {
 public:
  struct Options {
    std::uint64_t buffer = std::uint64_t{1} << 20;  ///< largest size, in bytes
    /// So many bytes of a file are mapped at a time, and huge pages around them.
    std::uint64_t mapped = std::uint64_t{8} << 20;
    /// Of long runs. Past the page cache takes 4 MiB beside the buffer.
    ReadEngine engine = ReadEngine::kBuffered;
    bool shared = false;  ///< over-read at most 5 %: others may read what lies between
    /// Reading over a gap up to this is cheaper than another request.
    std::uint64_t gap = 2048;
  };

  RangeReader(const Metadata& metadata, Delivery& delivery, const Options& options)
      : metadata_(metadata), delivery_(delivery), options_(options) {}

  /// `payload` is where element 0 of the item's source view lies in the file.
  void read(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
            PassingRecord& record);

  /// The first and the last bytes of a chunk's place, where archives say what they hold.
  struct Ends {
    std::array<std::byte, 8192> head;
    std::array<std::byte, 8192> tail;
  };
  /// Copies them out of the mapped file, if that is how the item will be read: requests for a few
  /// KiB leave small pages in the page cache, which are mapped one by one. Returns false, with
  /// unspecified bytes, if they are to be read otherwise.
  bool copy_ends(const ReadItem& item, const ReadableFile& file, const StorageInfo& place,
                 Ends& ends) const;

  /// Reads a range past the page cache, where the engine has it so: `take` as that of UncachedFile.
  /// Returns false, with nothing handed over, if it is to be read otherwise.
  bool read_past_cache(const ReadableFile& file, std::uint64_t offset, std::uint64_t length,
                       const std::function<void(ByteView)>& take) const;

  const Options& options() const noexcept { return options_; }
  /// What was copied out of mapped files, which files do not count as read.
  std::uint64_t bytes_mapped() const noexcept { return bytes_mapped_; }
  /// The buffer, for other uses between reads; never smaller than asked for.
  MutableByteView buffer(std::uint64_t bytes);

 private:
  enum class Way {
    kRuns,      ///< each straight into the destination
    kBuffered,  ///< many together, through the buffer
    kApart      ///< out of the mapped file: short runs with gaps that are not worth reading
  };
  /// `plan` has the runs from the item's source to its target.
  Way way_of(const ReadItem& item, const RunPlan& plan) const;

  std::size_t element(const ReadItem& item) const {
    return item_size(metadata_.tensors[item.tensor].properties.dtype);
  }
  std::uint64_t bytes_of(const ReadItem& item) const {
    return static_cast<std::uint64_t>(numel(item.sizes)) * element(item);
  }
  std::uint64_t span_of(const ReadItem& item) const;
  bool worth_reading_gaps(std::int64_t run, std::int64_t stride, std::size_t size) const;
  bool is_dense(const ReadItem& item) const;
  void read_buffered(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
                     PassingRecord& record);
  void read_apart(const ReadItem& item, const ReadableFile& file, std::uint64_t payload);
  bool copy_uncached(const ReadableFile& file, std::uint64_t offset, MutableByteView into,
                     PassingRecord& record);
  bool copy_mapped(const ReadItem& item, const ReadableFile& file, std::uint64_t payload);
  void read_runs(const ReadItem& item, const RunPlan& plan, const ReadableFile& file,
                 std::uint64_t payload, PassingRecord& record);

  const Metadata& metadata_;
  Delivery& delivery_;
  Options options_;
  Bytes buffer_;
  std::uint64_t bytes_mapped_ = 0;
};

}  // namespace dckpt
