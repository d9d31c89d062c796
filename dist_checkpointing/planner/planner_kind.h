#pragma once

#include "configs/policy/options.h"

namespace dckpt {

/// Returns the rules that the options select: a plain DCP directory is always planned by DCP's
/// rules.
PlannerKind planner_kind(const SaveOptions& options) noexcept;

}  // namespace dckpt
