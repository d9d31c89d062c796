#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/dckpt/grammar/command_spec.h"

namespace dckpt::tool {

/// Returns the names of an enumeration (enum_names.h) as choices.
template <typename Names>
std::vector<std::string> names_of(const Names& names) {
  std::vector<std::string> choices;
  for (const auto& [value, name] : names) choices.emplace_back(name);
  return choices;
}

// Commands declare their arguments through these two handles.

/// An option or argument of a command. The setters return the option itself.
class Option {
 public:
  explicit Option(OptionSpec& spec) : spec_(&spec) {}

  Option required();
  /// Sets the name of the value in --help; arguments have none, as they have a name already.
  Option type_name(const std::string& name);
  Option takes(Takes kind);
  Option one_of(std::vector<std::string> values);
  /// Makes the two options mutually exclusive.
  Option excludes(Option other);

  friend bool operator==(const Option&, const Option&) = default;

 private:
  OptionSpec* spec_;
};

/// The arguments of one command. Variables that receive values must live until the command has run.
class Parser {
 public:
  Parser(ProgramSpec& program, const std::string& name, const std::string& about);
  explicit Parser(CommandSpec& command) : command_(&command) {}

  void footer(const std::string& text);
  /// `name` is that of an argument, or has those of an option: "-o,--output".
  Option add_option(const std::string& name, std::string& value, const std::string& about);
  /// Adds an option that takes a number from 0 on.
  Option add_option(const std::string& name, std::optional<double>& value,
                    const std::string& about);
  /// Adds an option that takes one value each time that it is given, or an argument of any number
  /// of words.
  Option add_option(const std::string& name, std::vector<std::string>& values,
                    const std::string& about);
  /// Adds an option whose values `take` receives. `take` returns a sentence about what is wrong
  /// with a value, or "".
  Option add_option(const std::string& name, std::function<std::string(const std::string&)> take,
                    const std::string& about);
  Option add_flag(const std::string& name, bool& given, const std::string& about);
  /// Returns whether the option was on the command line. Valid once the line has been parsed.
  bool given(const std::string& option) const;
  /// Returns the options added so far, and --help.
  std::vector<Option> options() const;
  const CommandSpec& spec() const noexcept { return *command_; }

 private:
  CommandSpec* command_;
};

}  // namespace dckpt::tool
