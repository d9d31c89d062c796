#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// The grammar of the command line as data: parsing, messages about mistakes, --help, manual pages
// and completion all read it.
namespace dckpt::tool {

/// The meaning of an option's value or of an argument.
enum class Takes {
  kAnything,
  kChoice,  ///< OptionSpec::choices
  kFormat,  ///< format to write
  kMap,
  kMapSetting,  ///< NAME=VALUE of the --map in use
  kPolicy,
  kPolicyOrMap,
  kCheckpoint,
  kIteration,
  kFile,
  kFolder,
  kKey,
  kKeyPattern,
};

/// An option or an argument.
struct OptionSpec {
  std::vector<std::string> names{};  ///< "-o", "--output"; of an argument "PATH"
  std::string about{};
  std::string type_name{};  ///< of the value, in --help
  Takes kind = Takes::kAnything;
  std::vector<std::string> choices{};
  std::vector<const OptionSpec*> excludes{};  ///< that stand not beside it, in their order
  bool takes_value = true;                    ///< false for flags
  bool is_required = false;
  /// True if it may be given any number of times; an argument of this kind is the last.
  bool is_repeatable = false;
  /// Receives a value, "" for a flag. Returns a sentence about what is wrong with it, or "".
  std::function<std::string(const std::string&)> take{};
  std::size_t given = 0;  ///< number of times on the line, once it has been read

  bool is_argument() const { return names.front().front() != '-'; }
  /// Returns "--keys", "-x" for an option without a long name, "PATH" for an argument.
  const std::string& main_name() const;
  /// Returns "--prefix TEXT", "--json", or an argument: "PATH", "MODEL...".
  std::string usage() const;
};

/// A command, or the program, with its options in the order of --help.
struct CommandSpec {
  /// Begins with the option --help.
  CommandSpec(std::string called, std::string does);

  std::string name;
  std::string about;
  std::string footer{};
  std::deque<OptionSpec> options{};  ///< arguments among them; addresses stay valid

  OptionSpec& help() { return options.front(); }
  /// Returns the option of this name; null if there is none.
  OptionSpec* find(std::string_view option);
};

struct ProgramSpec : CommandSpec {
  using CommandSpec::CommandSpec;

  std::deque<CommandSpec> commands{};

  /// Returns the command of this name; null if there is none.
  CommandSpec* find_command(std::string_view command);
  std::vector<std::string> command_names() const;
};

/// Returns "dckpt remove [OPTIONS] --prefix TEXT PATH".
std::string usage_line(const ProgramSpec& program, const CommandSpec& command);

/// Returns the text of --help for the program or one of its commands.
std::string help_text(const ProgramSpec& program, const CommandSpec& command);

/// Returns "a, b or c", with "or" as the `last` word between them.
std::string alternatives(const std::vector<std::string>& words, const std::string& last);

}  // namespace dckpt::tool
