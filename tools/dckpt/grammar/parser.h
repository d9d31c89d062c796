#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dckpt::tool {

/// The meaning of an option's value or of an argument, declared once. The check of choices, the
/// message about a wrong choice, and completion are derived from it.
enum class Takes {
  kAnything,
  kChoice,
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

/// Returns the names of an enumeration (enum_names.h) as choices.
template <typename Names>
std::vector<std::string> names_of(const Names& names) {
  std::vector<std::string> choices;
  for (const auto& [value, name] : names) choices.emplace_back(name);
  return choices;
}

// Commands declare their arguments through these two handles. Only the parts of the tool that
// parse, explain and complete the command line include CLI11 itself, whose templates take a
// compiler ten seconds.

/// An option or argument of a command. The setters return the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  /// Sets the name of the value in --help; empty for arguments, which already have a name.
  Option type_name(const std::string& name);
  /// Makes the option take one value each time that it is given.
  Option repeatable();
  Option takes(Takes kind);
  Option one_of(std::vector<std::string> values);
  Option non_negative();
  /// Makes the two options mutually exclusive.
  Option excludes(Option other);

  friend bool operator==(const Option&, const Option&) = default;

 private:
  CLI::Option* option_;
};

/// The arguments of one command. Variables that receive values must live until the command has run.
class Parser {
 public:
  Parser(CLI::App& program, const std::string& name, const std::string& about);

  void footer(const std::string& text);
  Option add_option(const std::string& name, std::string& value, const std::string& about);
  Option add_option(const std::string& name, std::optional<double>& value,
                    const std::string& about);
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
  const CLI::App& app() const noexcept { return *app_; }

 private:
  CLI::App* app_;
};

}  // namespace dckpt::tool
