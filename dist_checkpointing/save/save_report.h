#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"

namespace DCKPT_API dckpt {

/// What a save did, the same on every rank. Times are those of the slowest rank.
struct SaveReport {
  struct Phase {
    double seconds = 0;
    std::uint64_t bytes = 0;  ///< of all ranks

    double bytes_per_second() const noexcept {
      return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
    }
    friend bool operator==(const Phase&, const Phase&) = default;
  };

  std::uint64_t bytes = 0;  ///< of the checkpoint's files
  std::uint64_t files = 0;
  double seconds = 0;    ///< from the call until the checkpoint is visible
  Phase plan{};          ///< describing the state and agreeing on who writes what
  Phase stage{};         ///< copying the state, for background saves only; overlaps with `write`
  Phase write{};         ///< writing the data files and making them durable
  Phase publish{};       ///< writing what readers start from, making the checkpoint visible
  int slowest_rank = 0;  ///< in `write`
  bool plan_cached = false;   ///< the plan of the previous save was reused
  std::string why_planned{};  ///< otherwise: "first save", "rank 3: key 'x' is new", …
  std::string engine{};  ///< of the data files: "direct", "buffered", both, or "" if the storage
                         ///< does not say

  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};

/// One line: "12.1 GiB in 17 files in 8.31 s (plan 0.02 s, cached; write 7.90 s, 1.5 GiB/s, direct,
/// rank 3 was the last; publish 0.10 s)".
std::string to_string(const SaveReport& report);

/// Of the job, from those of the ranks in their order.
SaveReport sum_of(std::span<const SaveReport> ranks);

// Between ranks. Throws CheckpointError (corrupt).
Bytes encode_save_report(const SaveReport& report);
SaveReport decode_save_report(ByteView bytes);

}  // namespace dckpt
