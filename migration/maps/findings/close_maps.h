#pragma once

#include <string>

#include "mapping/planning/metadata.h"

namespace dckpt {

/// Returns the shipped maps that know most kinds of a checkpoint's keys, by the names of either
/// side, as the end of a sentence; empty if none knows any.
std::string closest_maps(const Metadata& source);

}  // namespace dckpt
