#pragma once

/// The interface for writing your own backend: a SaveStrategy, a CheckpointReader (for one that
/// shows another reader's checkpoint changed: a ForwardingReader) and their registration.
/// examples/raw_strategy is one, and check_strategy() (testing.h) checks it.

#include "configs/policy/strategy_options.h"
#include "dckpt/dist_checkpointing.h"
#include "mapping/base/wire.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/device/callback_runtime.h"
#include "strategies/device/runtime.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/registry/registry.h"
