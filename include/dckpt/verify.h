#pragma once

/// check_stored(): whether the files of a checkpoint are all there and sound. verify() in inspect.h
/// searches for NaN, too.

#include "dist_checkpointing/verify/check_stored.h"
