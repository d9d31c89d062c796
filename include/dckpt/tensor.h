#pragma once

/// Tensor: a handle to memory of any origin, with dtype, shape and strides, or to elements that
/// only functions reach.

#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"
#include "mapping/state/callback_tensor.h"
#include "mapping/state/tensor.h"
