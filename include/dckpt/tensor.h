#pragma once

/// Tensor: a handle of memory with dtype, shape and strides, from wherever it comes.

#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"
#include "mapping/state/tensor.h"
