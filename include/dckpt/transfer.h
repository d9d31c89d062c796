#pragma once

/// Moves tensors between running ranks from one layout to another, without storage; and plans such
/// transfers for other transports.

#include "dist_checkpointing/transfer.h"
