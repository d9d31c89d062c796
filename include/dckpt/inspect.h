#pragma once

/// Examines checkpoints (open, inspect, explain, verify, digest, stats, diff), training roots and
/// formats.

#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/digest.h"
#include "dist_checkpointing/inspect/explain.h"
#include "dist_checkpointing/inspect/formats.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/root_survey.h"
#include "dist_checkpointing/inspect/stats.h"
#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/open.h"
