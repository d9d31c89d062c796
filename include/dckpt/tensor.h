#pragma once

/// Tensor: a handle to memory of any origin, with dtype, shape and strides.

#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"
#include "mapping/state/tensor.h"
