#pragma once

/// Loads: load() and its relatives, also in the background.

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_async.h"
