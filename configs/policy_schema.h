#pragma once

#include "configs/policy.h"
#include "configs/schema.h"

namespace dckpt {

/// The one description of a policy file.
const config::Type<Policy>& policy_type();

/// Where a field ("save.io.engine") is in a file, or its nearest parent that is.
TextPlace place_of(const YamlNode& root, std::string_view field);

}  // namespace dckpt
