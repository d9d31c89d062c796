#pragma once

#include "operations/upkeep/treatment.h"

namespace dckpt {

/// Diagnoses a training root, and decides what the treatment does to it; throws as treat_root()
/// does. Changes nothing.
TreatmentReport plan_treatment(const Location& root, const Treatment& treatment,
                               const DiagnoseOptions& options);

}  // namespace dckpt
