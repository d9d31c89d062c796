#pragma once

/// Checks for those who write a strategy, a planner, a storage, a communicator or a device
/// of their own. Link
/// dckpt::testing.

#include "dist_checkpointing/conformance/communicator_conformance.h"
#include "dist_checkpointing/conformance/device_conformance.h"
#include "dist_checkpointing/conformance/planner_conformance.h"
#include "dist_checkpointing/conformance/storage_conformance.h"
#include "dist_checkpointing/conformance/strategy_conformance.h"
