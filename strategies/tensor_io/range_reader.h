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

/// If other ranks read, too: at most one unwanted byte for this many wanted ones.
constexpr std::uint64_t kSharedGap = 20;

/// Reads the wanted ranges of chunks, for one thread. A long run goes straight into the
/// destination, past the page cache if the engine says so. A buffer serves many short runs that lie
/// close together and destinations that do not take reads. Short runs that lie apart are copied out
/// of the mapped file.
class RangeReader {
 public:
  struct Options {
    std::uint64_t buffer = std::uint64_t{1} << 20;  ///< maximum size, in bytes
    /// Bytes of a file that are mapped at a time, besides the huge pages around them.
    std::uint64_t mapped = std::uint64_t{8} << 20;
    /// The engine of long runs. Reading past the page cache takes 4 MiB in addition to the buffer.
    ReadEngine engine = ReadEngine::kBuffered;
    bool shared = false;  ///< over-read at most 5 %: others may read the bytes between
    /// Reading over a gap up to this size is cheaper than another request.
    std::uint64_t gap = 2048;
  };

  RangeReader(const Metadata& metadata, Delivery& delivery, const Options& options)
      : metadata_(metadata), delivery_(delivery), options_(options) {}

  /// `payload` is the offset in the file of element 0 of the item's source view.
  void read(const ReadItem& item, const ReadableFile& file, std::uint64_t payload,
            PassingRecord& record);

  /// The first and the last bytes of a chunk's place, where archives describe their content.
  struct Ends {
    std::array<std::byte, 8192> head;
    std::array<std::byte, 8192> tail;
  };
  /// Copies the ends of a place out of the mapped file if the item will be read that way: requests
  /// for a few KiB leave small pages in the page cache, which are mapped one by one. Returns false,
  /// with unspecified bytes, if the ends must be read in another way.
  bool copy_ends(const ReadItem& item, const ReadableFile& file, const StorageInfo& place,
                 Ends& ends) const;

  /// Reads a range past the page cache where the engine says so. `take` is as for UncachedFile.
  /// Returns false, with nothing handed over, if the range must be read in another way.
  bool read_past_cache(const ReadableFile& file, std::uint64_t offset, std::uint64_t length,
                       const std::function<void(ByteView)>& take) const;

  const Options& options() const noexcept { return options_; }
  /// Bytes copied out of mapped files, which files do not count as read.
  std::uint64_t bytes_mapped() const noexcept { return bytes_mapped_; }
  /// Returns the buffer, for other uses between reads, with at least the requested size.
  MutableByteView buffer(std::uint64_t bytes);

 private:
  enum class Way {
    kRuns,      ///< reads each run straight into the destination
    kBuffered,  ///< reads many runs together, through the buffer
    kApart      ///< copies short runs whose gaps are not worth reading out of the mapped file
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
