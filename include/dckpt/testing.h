#pragma once

/// Checks for those who write a strategy or a communicator of their own.

#include "dist_checkpointing/conformance/communicator_conformance.h"
#include "dist_checkpointing/conformance/strategy_conformance.h"
