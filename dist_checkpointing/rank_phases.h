#pragma once

#include <span>
#include <string>

#include "dist_checkpointing/phase_report.h"
#include "mapping/base/phase_clock.h"
#include "mapping/base/wire.h"

// These functions put the reports of a job together from what each rank has measured.

namespace dckpt {

/// Of what the ranks took, in their order.
PhaseReport over_ranks(std::span<const PhaseClock::Taken> ranks);

/// Why ranks have planned anew, from their reasons in their order, empty ones left out: "first
/// save", or "rank 3: key 'x' is new" if they do not all have the same.
std::string first_reason(std::span<const std::string> ranks);

// Between ranks. Reading throws CheckpointError (corrupt) for times that are none.
void write_to(WireWriter& writer, const PhaseClock::Taken& taken);
void write_to(WireWriter& writer, const PhaseReport& report);
PhaseClock::Taken read_taken(WireReader& reader);
PhaseReport read_phase_report(WireReader& reader);

}  // namespace dckpt
