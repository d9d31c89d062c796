#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// The words of a line that is being typed into a shell, the last one being that at the cursor
/// (empty behind a blank). Quotes and backslashes are taken off, `~/` at the beginning of a word
/// and $NAME become what they stand for, and everything else that a shell would do is left undone:
/// nothing is run.
std::vector<std::string> shell_words(std::string_view line);

}  // namespace dckpt::tool
