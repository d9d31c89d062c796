#pragma once

/// For writing a backend of one's own: a SaveStrategy, a CheckpointReader, their registration, and the check that they conform.
/// examples/raw_strategy is one.

#include "configs/strategy_options.h"
#include "dckpt/dist_checkpointing.h"
#include "dist_checkpointing/strategy_conformance.h"
#include "mapping/base/wire.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/registry.h"
