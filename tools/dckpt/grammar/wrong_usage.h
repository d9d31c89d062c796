#pragma once

#include <optional>
#include <span>
#include <string>

#include "mapping/base/error.h"
#include "tools/dckpt/grammar/command_line.h"

namespace dckpt::tool {

/// An error about words of the line, with what may have been meant.
struct Refusal {
  std::string message{};
  bool of_arguments = false;  ///< arguments are missing, or there are too many
};

/// Returns the first mistake on the line; nothing if there is none. `problem` is the result of
/// take_values().
std::optional<Refusal> find_mistake(ProgramSpec& program, const CommandLine& line,
                                    const std::string& problem);

/// Returns a mistake that --help does not excuse: a value of a flag, an empty value, an option with
/// one value that is given twice. Returns nothing if there is none.
std::optional<Refusal> find_odd_value(const CommandLine& line);

/// Returns the message for an unknown word in place of a command.
std::string unknown_command(const ProgramSpec& program, const std::string& word);

/// Returns the same error. If a path of the line does not exist, adds an existing one that may have
/// been meant.
CheckpointError with_suggested_path(const CheckpointError& error, const CommandLine& line);

/// Returns the same error. If the command is merge or join, which make conversions, and the advice
/// names options of dckpt convert that it lacks, the result says where they can be given.
CheckpointError with_place_of_options(const CheckpointError& error, ProgramSpec& program,
                                      const CommandLine& line);

}  // namespace dckpt::tool
