#pragma once

/// Options of saving and loading, and the YAML files that hold them.

#include "configs/options.h"
#include "configs/policy.h"
