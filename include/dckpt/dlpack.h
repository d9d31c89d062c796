#pragma once

/// DLPack: tensors of other libraries, without a copy and without their headers.

#include "mapping/state/dlpack.h"
