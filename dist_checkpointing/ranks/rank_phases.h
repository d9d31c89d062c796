#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist_checkpointing/ranks/phase_report.h"
#include "mapping/base/phase_clock.h"
#include "mapping/base/wire.h"

// These functions put the reports of a job together from what each rank has measured.

namespace dckpt {

/// Returns the report of a phase, given each rank's measurement in the order of ranks.
PhaseReport over_ranks(std::span<const PhaseClock::Taken> ranks);
/// Does the same for one member of each rank's report.
template <typename Report>
PhaseReport over_ranks(std::span<const Report> ranks, PhaseClock::Taken Report::*phase) {
  std::vector<PhaseClock::Taken> taken;
  for (const Report& rank : ranks) taken.push_back(rank.*phase);
  return over_ranks(taken);
}

/// Returns why ranks have planned from scratch, given their reasons in the order of ranks; empty
/// ones are left out: "first save", or "rank 3: key 'x' is new" if they do not all have the same.
std::string first_reason(std::span<const std::string> ranks);

// Read from messages between ranks (mapping/base/wire_fields.h). Both throw CheckpointError
// (corrupt) for invalid times.
void read_from(WireReader& reader, PhaseClock::Taken& taken);
void read_from(WireReader& reader, PhaseReport& report);

}  // namespace dckpt
