#pragma once

/// Examines checkpoints (open, inspect, explain, verify, digest, stats, diff), training roots and
/// formats.

#include "dist_checkpointing/open/open.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/explain.h"
#include "operations/inspect/formats.h"
#include "operations/inspect/inspect.h"
#include "operations/inspect/root_survey.h"
#include "operations/inspect/stats.h"
#include "operations/inspect/verify.h"
