#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "dist_checkpointing/ranks/phase_report.h"
#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/base/finding.h"

namespace DCKPT_API dckpt {

/// The outcome of a save, the same on every rank.
struct SaveReport {
  std::uint64_t bytes = 0;  ///< size of the checkpoint's files
  std::uint64_t files = 0;
  double seconds = 0;  ///< from the call until the checkpoint is visible
  // Phase describes each one.
  PhaseReport plan{};
  PhaseReport stage{};  ///< overlaps with `write`
  PhaseReport copy{};   ///< a part of `write`
  PhaseReport write{};
  PhaseReport sync{};         ///< a part of `write`
  PhaseReport publish{};      ///< on rank 0, which alone publishes
  bool plan_cached = false;   ///< the plan of the previous save was reused
  std::string why_planned{};  ///< reason if not cached: "first save", "rank 3: key 'x' is new", …
  std::string engine{};  ///< for the data files: "direct", "buffered", both, or "" if the storage
                         ///< does not say
  Findings findings{};   ///< warnings of rank 0 before it wrote; not in dckpt_report.json

  friend bool operator==(const SaveReport&, const SaveReport&) = default;
};
constexpr auto fields(const SaveReport*) {
  using S = SaveReport;
  return std::tuple(
      Field("bytes", &S::bytes, "Bytes of the checkpoint's files."),
      Field("files", &S::files, "Number of its files."),
      Field("seconds", &S::seconds, "Seconds from the call until the checkpoint was complete."),
      Field(&S::plan), Field(&S::stage), Field(&S::copy), Field(&S::write), Field(&S::sync),
      Field(&S::publish),
      Field("plan_cached", &S::plan_cached, "Whether the plan of the previous save was reused."),
      Field("why_planned", &S::why_planned, "Why it was not; empty if it was."),
      Field("engine", &S::engine,
            "How data files were written: direct, buffered, or both; empty if unknown."),
      Field(&S::findings));
}

inline constexpr std::array<std::pair<Phase, PhaseReport SaveReport::*>, 6> kSavePhases{
    {{Phase::kPlan, &SaveReport::plan},
     {Phase::kStage, &SaveReport::stage},
     {Phase::kCopy, &SaveReport::copy},
     {Phase::kWrite, &SaveReport::write},
     {Phase::kSync, &SaveReport::sync},
     {Phase::kPublish, &SaveReport::publish}}};

/// Returns one line: "12.1 GiB in 17 files in 8.31 s (plan 0.02 s, cached; write 7.90 s, 1.5 GiB/s,
/// direct, rank 3 was the last; publish 0.10 s)".
std::string to_string(const SaveReport& report);

}  // namespace dckpt
