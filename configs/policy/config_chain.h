#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "configs/policy/policy.h"
#include "configs/yaml/problems.h"
#include "configs/yaml/yaml.h"

namespace dckpt {

/// Configurations that ship with the library, and files of the same kind.
struct ConfigLibrary {
  const char* what;  ///< "policy", for messages
  const char* many;  ///< "policies"
  std::span<const ShippedPolicy> shipped;
};

/// Returns the YAML of the shipped configuration of that name. Throws CheckpointError
/// (invalid-argument) with the names that there are.
std::string_view shipped_text(const ConfigLibrary& library, std::string_view name);

/// Finds a file in `folder` or, if there is no such file, the shipped configuration of that name.
/// Throws CheckpointError: io if the file cannot be read, invalid-argument for a name that is
/// neither.
PolicyText find_config(const ConfigLibrary& library, const std::string& name_or_file,
                       const std::filesystem::path& folder);

/// Reads a configuration after those that it extends, at most kMaxPolicyDepth in a row. Calls
/// `read` for each, the outermost last, with the name of its file (empty for the outermost).
/// Returns the root of the outermost unless it cannot be understood. Without a folder, no file is
/// read.
std::optional<YamlNode> read_config(
    const ConfigLibrary& library, std::string_view yaml,
    const std::optional<std::filesystem::path>& folder,
    const std::function<void(const YamlNode& root, const std::string& file,
                             ConfigProblems& problems)>& read,
    ConfigProblems& problems);

}  // namespace dckpt
