#pragma once

/// Checkpointer: saving and resuming a training run, with retention.

#include "dist_checkpointing/checkpointer.h"
