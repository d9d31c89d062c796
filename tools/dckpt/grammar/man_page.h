#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace dckpt::tool {

/// Returns the manual page of a command, or of the program itself, with the content of --help, in
/// roff with the man(7) macros.
std::string man_page(CLI::App& program, CLI::App& command);

/// Returns "dckpt" or "dckpt-convert".
std::string man_page_name(const CLI::App& program, const CLI::App& command);

}  // namespace dckpt::tool
