#pragma once

/// For writing a backend of one's own: a SaveStrategy, a CheckpointReader, their registration, and
/// the check that they conform; or a Communicator, or the Transport for one. examples/raw_strategy
/// and examples/mpi_communicator are such.

#include "configs/strategy_options.h"
#include "dckpt/dist_checkpointing.h"
#include "dist_checkpointing/conformance/communicator_conformance.h"
#include "dist_checkpointing/conformance/strategy_conformance.h"
#include "mapping/base/wire.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/contract/registry.h"
#include "strategies/formats/torch_archive/torch_file.h"
