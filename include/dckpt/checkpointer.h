#pragma once

/// Checkpointer: saves and resumes a training run, with retention.

#include "dist_checkpointing/checkpointer/checkpointer.h"
