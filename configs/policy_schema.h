#pragma once

#include "configs/policy.h"
#include "configs/schema.h"

namespace dckpt {

/// The one description of a policy file.
const config::Type<Policy>& policy_type();

/// Where a field ("save.io.engine") stands in a file, or the nearest one above it that does.
TextPlace place_of(const YamlNode& root, std::string_view field);

/// Reports what a sound policy asks for and this version cannot do; `root` is the file that it was
/// read from.
void check_supported(const Policy& policy, const YamlNode& root, ConfigProblems& problems);

}  // namespace dckpt
