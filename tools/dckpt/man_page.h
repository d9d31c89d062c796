#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace dckpt::tool {

/// The manual page of a command, or of the program itself, in the roff language with the macros of
/// man(7). It says what --help says.
std::string man_page(CLI::App& program, CLI::App& command);

/// "dckpt", "dckpt-convert"
std::string man_page_name(const CLI::App& program, const CLI::App& command);

}  // namespace dckpt::tool
