#pragma once

/// The locations of checkpoints: paths, URLs of registered schemes, and storages of your own.

#include "strategies/storage/location.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/storage.h"
