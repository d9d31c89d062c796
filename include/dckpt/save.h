#pragma once

/// Saves: save() and, in the background, AsyncSaver; check_replicas() between saves.

#include "dist_checkpointing/save/check_replicas.h"
#include "dist_checkpointing/save/report_file.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
