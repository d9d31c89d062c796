#pragma once

#include <string>

namespace dckpt {

/// A name part that no other writer uses: host, process and a random number.
std::string staging_token();

/// A random identifier as DCP's storage metadata keep it (the form of a UUID).
std::string random_id();

}  // namespace dckpt
