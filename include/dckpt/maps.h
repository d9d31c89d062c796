#pragma once

/// Maps between Megatron's keys and those of Hugging Face, which dckpt::maps registers for
/// `load.map` where it is linked.

#include "migration/registration/register_maps.h"
