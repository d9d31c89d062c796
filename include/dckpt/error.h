#pragma once

/// CheckpointError, the one exception of the library, and where its messages and the phases of
/// saves and loads go.

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/phase.h"
