#pragma once

/// @file
/// The resources that the library shares with the process that hosts it, and the ways to turn them
/// off: the log, the phase sink, and mapped reads with their signal handler. See docs/embedding.md.

#include "mapping/base/log.h"
#include "mapping/base/phase.h"
#include "strategies/storage/mapped_reads.h"
