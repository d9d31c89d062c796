#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/dckpt/grammar/command_spec.h"

namespace dckpt::tool {

/// An option, with its value if it has one, or an argument of the command line.
struct Given {
  OptionSpec* option = nullptr;  ///< null for an unknown option or a surplus argument
  std::string name{};            ///< the option as typed; of an argument the argument itself
  std::optional<std::string> value{};
  bool is_argument = false;
};

/// The meaning of the words to a program whose commands have their own options. Words that are
/// wrong are also read, for the error message, and so are incomplete lines, for shell completion.
struct CommandLine {
  CommandSpec* command = nullptr;  ///< the program itself until a command is named
  std::vector<Given> given{};
  std::vector<OptionSpec*> free{};  ///< arguments still to come, in order
  OptionSpec* expects = nullptr;    ///< the next word is the value of this option
  bool only_arguments = false;      ///< after "--"

  /// Returns the last value given for the option or argument; null if there is none.
  const Given* find(const OptionSpec& option) const;
};

/// Reads `words`, which follow the name of the program.
CommandLine read_command_line(ProgramSpec& program, std::span<const std::string> words);

/// Hands the values to their options (OptionSpec::take). Returns a sentence about the first one
/// that is wrong, or "".
std::string take_values(const CommandLine& line);

}  // namespace dckpt::tool
