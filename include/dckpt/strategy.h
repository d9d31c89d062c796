#pragma once

/// For writing a backend of one's own: a SaveStrategy, a CheckpointReader and their registration.
/// examples/raw_strategy is one. Whether it conforms, testing.h tells.

#include "configs/strategy_options.h"
#include "dckpt/dist_checkpointing.h"
#include "dckpt/testing.h"
#include "mapping/base/wire.h"
#include "strategies/contract/registry.h"
#include "strategies/formats/torch_archive/torch_file.h"
