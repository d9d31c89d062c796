#pragma once

/// CheckpointError, the one exception of the library, and the sinks of its messages and of the
/// phases of saves and loads.

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/phase.h"
