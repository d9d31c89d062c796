#pragma once

/// OptimizerKind: the interface that describes an optimizer of your own to sharded_state() of
/// torch.h. Link dckpt::torch.

#include "dckpt/torch.h"
#include "mapping/torch/optimizer_kind.h"
