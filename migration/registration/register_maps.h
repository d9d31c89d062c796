#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Lets loads use maps (`load.map`). A program that links dckpt::maps has done so before main().
/// Calling it again changes nothing.
void register_maps();

}  // namespace dckpt
