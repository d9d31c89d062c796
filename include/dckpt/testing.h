#pragma once

/// Checks for your own strategy, planner, storage, communicator or device. Link dckpt::testing.

#include "dist_checkpointing/conformance/communicator_conformance.h"
#include "dist_checkpointing/conformance/device_conformance.h"
#include "dist_checkpointing/conformance/planner_conformance.h"
#include "dist_checkpointing/conformance/storage_conformance.h"
#include "dist_checkpointing/conformance/strategy_conformance.h"
