#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dckpt::tool {

/// An option, with its value if it has one, or an argument of the command line.
struct Given {
  CLI::Option* option = nullptr;  ///< null for an unknown option or a surplus argument
  std::string name{};             ///< the option as typed; of an argument the argument itself
  std::optional<std::string> value{};
  bool is_argument = false;
};

/// The meaning of the words to a program whose commands have their own options. Words that the
/// parser refuses are also read, for the error message, and so are incomplete lines, for shell
/// completion.
struct CommandLine {
  CLI::App* app = nullptr;  ///< the command; the program itself until one is named
  std::vector<Given> given{};
  std::vector<CLI::Option*> free{};  ///< arguments still to come, in order
  CLI::Option* expects = nullptr;    ///< the next word is the value of this option
  bool only_arguments = false;       ///< after "--"

  /// Returns the last value given for the option or argument; null if there is none.
  const Given* find(const CLI::Option* option) const;
};

/// Reads `words`, which follow the name of the program.
CommandLine read_command_line(CLI::App& program, std::span<const std::string> words);

/// Returns the subcommand of that name; null if there is none.
CLI::App* find_command(CLI::App& program, const std::string& name);
std::vector<std::string> command_names(CLI::App& program);

/// Returns whether the word after the option is its value.
bool takes_value(const CLI::Option& option);
/// Returns "--keys", or "-x" for an option without a long name.
std::string main_name(const CLI::Option& option);
/// Returns whether the argument takes any number of words; such an argument is the last.
bool takes_many(const CLI::Option& argument);
/// Returns "--prefix TEXT", "--json", or an argument: "PATH", "MODEL...".
std::string usage_of(const CLI::Option& option);
/// Returns "dckpt remove [OPTIONS] --prefix TEXT PATH".
std::string usage_line(CLI::App& program, CLI::App& command);

}  // namespace dckpt::tool
