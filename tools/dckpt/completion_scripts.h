#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// The word before the line to complete: dckpt __complete LINE. It prints "WORD\tABOUT" for each
/// candidate, and ":files" or ":folders" last where the shell should complete paths, too.
inline constexpr std::string_view kCompleteWord = "__complete";

/// A few lines for a shell that ask the tool for candidates.
struct CompletionScript {
  std::string shell;
  std::string_view text;
  std::string file;  ///< below share/, where the shell finds it
};
const std::vector<CompletionScript>& completion_scripts();

}  // namespace dckpt::tool
