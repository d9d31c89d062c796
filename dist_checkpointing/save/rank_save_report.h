#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/bytes.h"
#include "mapping/base/fields.h"
#include "mapping/base/phase_clock.h"

namespace dckpt {

/// One rank's part of a SaveReport.
struct RankSaveReport {
  std::uint64_t bytes = 0;
  std::uint64_t files = 0;
  PhaseClock::Taken plan{};
  PhaseClock::Taken stage{};
  PhaseClock::Taken copy{};
  PhaseClock::Taken write{};
  PhaseClock::Taken sync{};
  std::string why_planned{};
  std::string engine{};

  friend bool operator==(const RankSaveReport&, const RankSaveReport&) = default;
};
constexpr auto fields(const RankSaveReport*) {
  using R = RankSaveReport;
  return std::tuple(Field(&R::bytes), Field(&R::files), Field(&R::plan), Field(&R::stage),
                    Field(&R::copy), Field(&R::write), Field(&R::sync), Field(&R::why_planned),
                    Field(&R::engine));
}

/// Returns the job's report, given those of the ranks in their order.
SaveReport sum_of(std::span<const RankSaveReport> ranks);

// Encode and decode messages between ranks. Decoding throws CheckpointError (corrupt).
Bytes encode(const RankSaveReport& report);
RankSaveReport decode_rank_report(ByteView bytes);
Bytes encode(const SaveReport& report);
SaveReport decode_save_report(ByteView bytes);

}  // namespace dckpt
