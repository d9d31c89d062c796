#pragma once

/// @file
/// What the library shares with the process that hosts it, and how to turn it off: the log, the
/// phase sink, and mapped reads with their signal handler. docs/embedding.md.

#include "mapping/base/log.h"
#include "mapping/base/phase.h"
#include "strategies/storage/mapped_reads.h"
