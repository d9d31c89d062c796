#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dckpt::tool {

/// Where this tool comes from, as it was known when the build was configured.
struct BuildInfo {
  std::string version;     ///< "0.1.0"
  std::string commit;      ///< "unknown" outside a git tree
  std::string date;        ///< of the commit, "2026-01-31"; empty outside a git tree
  std::string compiler;    ///< "GNU 12.2.0"
  std::string build_type;  ///< "Release"
  /// What was found, with what is used or built: {"crc32", "ISA-L"}, {"nccl", "no"}.
  std::vector<std::pair<std::string, std::string>> with;
};
const BuildInfo& build_info();

/// For --version; the first line is "dckpt 0.1.0".
std::string version_text();
/// The same as JSON.
std::string version_json();

}  // namespace dckpt::tool
