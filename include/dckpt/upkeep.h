#pragma once

/// Looks after training roots and fleets of checkpoints: diagnose_root(), treat_root(),
/// verify_fleet().

#include "dist_checkpointing/upkeep/diagnosis.h"
#include "dist_checkpointing/upkeep/fleet.h"
#include "dist_checkpointing/upkeep/treatment.h"
