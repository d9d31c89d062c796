#pragma once

#include <string>

#include "tools/dckpt/grammar/command_spec.h"

namespace dckpt::tool {

/// Returns the manual page of a command, or of the program itself, with the content of --help, in
/// roff with the man(7) macros.
std::string man_page(const ProgramSpec& program, const CommandSpec& command);

/// Returns "dckpt" or "dckpt-convert".
std::string man_page_name(const ProgramSpec& program, const CommandSpec& command);

}  // namespace dckpt::tool
