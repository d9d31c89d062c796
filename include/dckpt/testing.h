#pragma once

/// Checks for your own strategy, planner, storage, communicator or device. Link dckpt::testing.

#include "conformance/communicator_conformance.h"
#include "conformance/device_conformance.h"
#include "conformance/planner_conformance.h"
#include "conformance/storage_conformance.h"
#include "conformance/strategy_conformance.h"
