#pragma once

/// Where checkpoints are: paths, URLs of registered schemes, and storages of one's own.

#include "strategies/storage/location.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/storage.h"
