#pragma once

#include <string>
#include <string_view>

#include "configs/yaml/schema.h"

namespace dckpt::config {

// Parts that the fields of maps share.

/// Returns whether the text consists of letters, digits and underscores, and has some.
bool is_word(std::string_view text);
Type<std::string> word(const char* expected);

/// The type of a pattern of keys (key_pattern.h).
Type<std::string> pattern();

}  // namespace dckpt::config
