#pragma once

#include <cstdint>
#include <utility>

#include "mapping/geometry/strided_copy.h"

namespace dckpt {

/// Equally long runs whose beginnings are a pitch apart on each side, which a copy engine moves in
/// one call. Everything counts elements; the pitches of a single row are its length.
struct PitchedRows {
  std::int64_t source = 0;
  std::int64_t destination = 0;
  std::int64_t rows = 1;
  std::int64_t run = 0;
  std::int64_t source_pitch = 0;
  std::int64_t destination_pitch = 0;
};

/// Visits the runs of a plan, with those of the last axis in one call unless they overlap on either
/// side.
template <typename Visit>
void for_each_rows(RunPlan plan, Visit&& visit) {
  PitchedRows rows{.run = plan.run, .source_pitch = plan.run, .destination_pitch = plan.run};
  if (!plan.counts.empty() && plan.source_strides.back() >= plan.run &&
      plan.destination_strides.back() >= plan.run) {
    rows.rows = plan.counts.back();
    rows.source_pitch = plan.source_strides.back();
    rows.destination_pitch = plan.destination_strides.back();
    plan.counts.pop_back();
    plan.source_strides.pop_back();
    plan.destination_strides.pop_back();
  }
  for_each_run(plan, [&](std::int64_t source, std::int64_t destination) {
    rows.source = source;
    rows.destination = destination;
    visit(std::as_const(rows));
  });
}

}  // namespace dckpt
