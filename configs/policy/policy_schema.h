#pragma once

#include "configs/policy/policy.h"
#include "configs/yaml/schema.h"

namespace dckpt {

/// The one description of a policy file.
const config::Type<Policy>& policy_type();

/// Returns the place of a field ("save.io.engine") in a file, or of its nearest parent there.
TextPlace place_of(const YamlNode& root, std::string_view field);

}  // namespace dckpt
