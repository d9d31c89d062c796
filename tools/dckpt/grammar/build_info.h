#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dckpt::tool {

/// The origin of this tool, as known when the build was configured.
struct BuildInfo {
  std::string version;     ///< "0.1.0"
  std::string commit;      ///< the commit; "unknown" outside a git tree
  std::string date;        ///< date of the commit, "2026-01-31"; empty outside a git tree
  std::string compiler;    ///< "GNU 12.2.0"
  std::string build_type;  ///< "Release"
  /// The optional dependencies and what is used of each: {"crc32", "ISA-L"}, {"nccl", "no"}.
  std::vector<std::pair<std::string, std::string>> with;
};
const BuildInfo& build_info();

/// Returns the output of --version; its first line is "dckpt 0.1.0".
std::string version_text();
/// Returns the same as JSON.
std::string version_json();

}  // namespace dckpt::tool
