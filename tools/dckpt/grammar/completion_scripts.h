#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// The first argument of a completion request: dckpt __complete LINE. The answer is "WORD\tABOUT"
/// for each candidate, then ":files" or ":folders" if the shell should complete paths too.
inline constexpr std::string_view kCompleteWord = "__complete";

/// A short script that makes a shell ask the tool for candidates.
struct CompletionScript {
  std::string shell;
  std::string_view text;
  std::string file;  ///< path below share/ where the shell finds it
};
const std::vector<CompletionScript>& completion_scripts();

}  // namespace dckpt::tool
