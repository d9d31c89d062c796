#pragma once

/// Options of saving and loading, and the YAML files that hold them.

#include "configs/policy/options.h"
#include "configs/policy/policy.h"
