#pragma once

/// Looks after training roots and fleets of checkpoints: diagnose_root(), treat_root(),
/// verify_fleet().

#include "operations/upkeep/diagnosis.h"
#include "operations/upkeep/fleet.h"
#include "operations/upkeep/treatment.h"
