#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dckpt::tool {

/// Splits a line that is being typed into a shell into words; the last word is the one at the
/// cursor (empty after a space). Removes quotes and backslashes and expands `~/` at the beginning
/// of a word and $NAME. Performs no other expansion and runs nothing.
std::vector<std::string> shell_words(std::string_view line);

/// Returns what a person can paste into a shell to get this word, on one line: as it is, in single
/// quotes, or, if there are control characters, as $'…' with escapes.
std::string shell_word(std::string_view word);
/// Does the same for a path, which no command then takes for an option.
std::string shell_path(std::string_view path);

}  // namespace dckpt::tool
