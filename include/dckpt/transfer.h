#pragma once

/// Moves tensors between running ranks from one layout to another, without storage; and plans such
/// transfers for other transports.

#include "transfer/transfer.h"
