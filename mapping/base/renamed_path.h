#pragma once

#include <string>

#include "mapping/base/key_path.h"

namespace dckpt {

/// Returns the path for the new key `name`. A path that has a step for each part of its key gets
/// one for each part of the new key, with list positions where it had some, counted from the end.
KeyPath renamed_path(const KeyPath& path, const std::string& name);

}  // namespace dckpt
