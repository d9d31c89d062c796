#include "dist_checkpointing/save/phase_spans.h"

#include <algorithm>

namespace dckpt {

std::vector<PhaseSpan> phase_spans(const SaveReport& report) {
  const double planned = report.plan.seconds;
  // Staging and writing overlap.
  const double written = planned + std::max(report.stage.seconds, report.write.seconds);
  std::vector<PhaseSpan> spans;
  const auto add = [&](Phase phase, const PhaseReport& taken, double start) {
    if (taken.seconds > 0) spans.push_back({phase, start, taken.minimum, taken.seconds});
  };
  add(Phase::kPlan, report.plan, 0);
  add(Phase::kStage, report.stage, planned);
  add(Phase::kWrite, report.write, planned);
  add(Phase::kCopy, report.copy, planned);
  add(Phase::kSync, report.sync,
      planned + std::max(report.write.seconds - report.sync.seconds, 0.0));
  add(Phase::kPublish, report.publish, written);
  return spans;
}

}  // namespace dckpt
