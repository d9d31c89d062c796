#pragma once

/// The formats beside torch_dist and DCP (zarr, rank folders, local, torch_checkpointing,
/// safetensors), which dckpt::formats registers where it is linked.

#include "migration/registration/register_formats.h"
