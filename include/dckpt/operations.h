#pragma once

/// Everything that people do with checkpoints: they inspect and compare, convert and merge, and
/// look after training roots. The headers below can be included one by one.

#include "dckpt/convert.h"
#include "dckpt/inspect.h"
#include "dckpt/json.h"
#include "dckpt/upkeep.h"
