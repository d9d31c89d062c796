#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// The parts [first, last), all of one file, that a thread reads in one go.
struct ReadJob {
  std::size_t first = 0;
  std::size_t last = 0;
  bool batch = false;   ///< small chunks that lie close together, read with few requests
  bool checked = true;  ///< compare the bytes read with their checksum
};

struct ReadJobOptions {
  std::uint64_t batch_bytes = std::uint64_t{1} << 20;  ///< limit of one request for several chunks
  std::uint64_t job_bytes = std::uint64_t{1} << 20;    ///< limit of all requests of one batch
  /// Over-reading is capped at 5 % of the requested bytes: others may read the bytes between.
  bool shared = false;
  /// Maximum number of unwanted bytes between two chunks of a batch.
  std::uint64_t gap = std::uint64_t{32} << 10;
  bool verify = true;
  /// Other calls, or other ranks, may complete the records.
  bool checks_go_on = false;
};

/// Cuts large items, so that threads share them, and puts small chunks that lie close together into
/// one job: for many small chunks, the number of requests counts, not the bytes.
class ReadJobs {
 public:
  /// `items` must outlive the jobs.
  ReadJobs(const Metadata& metadata, std::span<const ReadItem> items,
           const ReadJobOptions& options);

  std::span<const ReadJob> jobs() const noexcept { return jobs_; }
  /// Returns an item, or a part of a large one. Parts are sorted by file and by position in it.
  const ReadItem& part(std::size_t index) const noexcept {
    const Part& part = parts_[index];
    return part.piece == kWhole ? items_[part.item] : pieces_[part.piece];
  }
  /// Returns the position of the item that the part belongs to.
  std::size_t item_of(std::size_t index) const noexcept { return parts_[index].item; }
  std::size_t size() const noexcept { return parts_.size(); }
  /// The parts of one chunk are [first_of_chunk(any), end_of_chunk(any)).
  std::size_t first_of_chunk(std::size_t index) const noexcept;
  std::size_t end_of_chunk(std::size_t index) const noexcept;
  std::uint64_t bytes_of(std::size_t first, std::size_t last) const noexcept;

 private:
  static constexpr std::size_t kWhole = SIZE_MAX;
  struct Part {
    std::size_t item;
    std::size_t piece = kWhole;
  };

  const StorageInfo& place(std::size_t index) const noexcept;
  std::uint64_t chunk_bytes(std::size_t index) const noexcept;
  bool same_chunk(std::size_t a, std::size_t b) const noexcept;
  std::size_t end_of_place(std::size_t first) const noexcept;
  void add(std::size_t item);
  void cut(std::size_t item, const ReadItem& from);
  void sort();
  bool worth_reading_whole(std::size_t first, std::size_t last) const;
  bool worth_reading_over(std::uint64_t gap, std::uint64_t gaps, std::uint64_t span) const;
  std::size_t add_batch(std::size_t first, std::size_t last);
  void add_ranges(std::size_t first, std::size_t last);

  const Metadata& metadata_;
  ReadJobOptions options_;
  std::span<const ReadItem> items_;
  std::vector<ReadItem> pieces_;  ///< parts of the few items that are cut
  std::vector<Part> parts_;
  std::vector<ReadJob> jobs_;
};

}  // namespace dckpt
