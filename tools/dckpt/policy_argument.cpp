#include "tools/dckpt/policy_argument.h"

#include <filesystem>

namespace dckpt::tool {

std::string PolicyArgument::text() const {
  std::error_code ignored;
  const bool bare = name.find_first_of("./") == std::string::npos;
  if (bare && !std::filesystem::exists(name, ignored)) return std::string(shipped_policy(name));
  return read_policy_file(name);
}

}  // namespace dckpt::tool
