#pragma once

/// Rewrites checkpoints: convert(), also by several workers, and remove_sharded_tensors().

#include "operations/convert/convert.h"
#include "operations/convert/convert_policy.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/convert/workers/worker_survey.h"
