#pragma once

#include <span>
#include <string>

#include "dist_checkpointing/ranks/phase_report.h"
#include "mapping/base/phase_clock.h"
#include "mapping/base/wire.h"

// These functions put the reports of a job together from what each rank has measured.

namespace dckpt {

/// Returns the report of a phase, given each rank's measurement in the order of ranks.
PhaseReport over_ranks(std::span<const PhaseClock::Taken> ranks);

/// Returns why ranks have planned from scratch, given their reasons in the order of ranks; empty
/// ones are left out: "first save", or "rank 3: key 'x' is new" if they do not all have the same.
std::string first_reason(std::span<const std::string> ranks);

// Encode and decode messages between ranks. Reading throws CheckpointError (corrupt) for invalid
// times.
void write_to(WireWriter& writer, const PhaseClock::Taken& taken);
void write_to(WireWriter& writer, const PhaseReport& report);
PhaseClock::Taken read_taken(WireReader& reader);
PhaseReport read_phase_report(WireReader& reader);

}  // namespace dckpt
