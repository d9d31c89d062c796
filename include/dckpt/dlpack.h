#pragma once

/// Tensors of other libraries, without a copy and without their headers here: DLPack.

#include "mapping/state/dlpack.h"
