#pragma once

/// Looks at checkpoints: open, inspect, explain, verify, digest, diff.

#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/digest.h"
#include "dist_checkpointing/inspect/explain.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/open.h"
