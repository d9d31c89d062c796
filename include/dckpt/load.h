#pragma once

/// Loads: load() and its relatives.

#include "dist_checkpointing/load/load.h"
