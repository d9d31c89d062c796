#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <span>
#include <string>

#include "mapping/base/error.h"
#include "tools/dckpt/command_line.h"

namespace dckpt::tool {

/// What is wrong with words that the parser refuses, and what may have been meant.
struct Refusal {
  std::string message{};
  bool of_arguments = false;  ///< some are missing, or there are too many
};
Refusal explain_refusal(CLI::App& program, const CommandLine& line, const CLI::ParseError& error);

/// Refuses what the parser would accept and yet not do: a value of a flag, an empty value, an
/// option with one value that is given twice. Empty if there is nothing of the kind.
std::optional<Refusal> refuse_silent(const CommandLine& line);

/// What to say where a command should be and another word stands.
std::string unknown_command(CLI::App& program, const std::string& word);

/// The same error; if a path of the line does not exist, with the name beside it that may have been
/// meant.
CheckpointError with_suggested_path(const CheckpointError& error, const CommandLine& line);

}  // namespace dckpt::tool
