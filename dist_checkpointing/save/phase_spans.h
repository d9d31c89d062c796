#pragma once

#include <vector>

#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/phase.h"

namespace dckpt {

/// A phase on the time axis of a save, in seconds.
struct PhaseSpan {
  Phase phase{};
  double start = 0;    ///< since the beginning
  double fastest = 0;  ///< duration on the fastest rank
  double slowest = 0;  ///< duration on the slowest rank
};

/// Returns the phases that took time, in the order in which a rank goes through them.
std::vector<PhaseSpan> phase_spans(const SaveReport& report);

}  // namespace dckpt
