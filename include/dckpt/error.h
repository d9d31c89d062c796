#pragma once

/// CheckpointError, the one exception of the library, and where its messages go.

#include "mapping/base/error.h"
#include "mapping/base/log.h"
