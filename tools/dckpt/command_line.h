#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dckpt::tool {

/// A word of the command line, or two where an option is followed by its value.
struct Given {
  CLI::Option* option = nullptr;  ///< null: an option that there is not, or an argument too many
  std::string name{};             ///< as it was written, of an argument the argument itself
  std::optional<std::string> value{};
  bool is_argument = false;
};

/// What words mean to a program whose commands have their own options. It also reads what the
/// parser refuses, for the message, and what is not complete yet, for the shell.
struct CommandLine {
  CLI::App* app = nullptr;  ///< the command; the program itself as long as none is named
  std::vector<Given> given{};
  std::vector<CLI::Option*> free{};  ///< arguments that are still to come, in order
  CLI::Option* expects = nullptr;    ///< the next word is the value of this option
  bool only_arguments = false;       ///< after "--"

  /// What was given for the option, or the argument, last; null if nothing.
  const Given* find(const CLI::Option* option) const;
};

/// `words` are those after the name of the program.
CommandLine read_command_line(CLI::App& program, std::span<const std::string> words);

/// The subcommand of that name; null if there is none.
CLI::App* find_command(CLI::App& program, const std::string& name);
std::vector<std::string> command_names(CLI::App& program);

/// Whether the word behind the option is its value.
bool takes_value(const CLI::Option& option);
/// "--keys"; of an option that has no long name "-x".
std::string main_name(const CLI::Option& option);
/// "--prefix TEXT", "--json", or the name of an argument.
std::string usage_of(const CLI::Option& option);
/// "dckpt remove [OPTIONS] --prefix TEXT PATH"
std::string usage_line(CLI::App& program, CLI::App& command);

}  // namespace dckpt::tool
