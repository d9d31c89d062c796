#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Registers the formats of dckpt::formats. A program that links it has done so before main().
/// Calling it again changes nothing.
void register_formats();

}  // namespace dckpt
