#pragma once

/// Loads: load() and its relatives, also in the background; open_checkpoint().

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_async.h"
#include "dist_checkpointing/open/open.h"
