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

/// What an option's value or an argument stands for. It is said once, where the option is declared;
/// the check of choices, the message about a wrong one, and completion follow from it.
enum class Takes {
  kAnything,
  kChoice,
  kFormat,  ///< to write
  kMap,
  kMapSetting,  ///< NAME=VALUE of the map that is given
  kPolicy,
  kPolicyOrMap,
  kCheckpoint,
  kIteration,
  kFile,
  kFolder,
  kKey,
  kKeyPattern,
};

/// The choices that are the names of an enumeration (enum_names.h).
template <typename Names>
std::vector<std::string> names_of(const Names& names) {
  std::vector<std::string> choices;
  for (const auto& [value, name] : names) choices.emplace_back(name);
  return choices;
}

// Commands declare their arguments through these two handles. Of the tool, only what parses,
// explains and completes the command line includes CLI11 itself, whose templates take a compiler
// ten seconds.

/// An option or argument of a command. The setters return it again.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  /// What --help calls the value; empty for arguments, which have a name already.
  Option type_name(const std::string& name);
  /// It takes one value each time that it is given.
  Option repeatable();
  Option takes(Takes kind);
  Option one_of(std::vector<std::string> values);
  Option non_negative();
  /// The two cannot be given together.
  Option excludes(Option other);

  friend bool operator==(const Option&, const Option&) = default;

 private:
  CLI::Option* option_;
};

/// The arguments of one command. Variables that take values must live until the command has run.
class Parser {
 public:
  Parser(CLI::App& program, const std::string& name, const std::string& about);

  void footer(const std::string& text);
  Option add_option(const std::string& name, std::string& value, const std::string& about);
  Option add_option(const std::string& name, std::optional<double>& value,
                    const std::string& about);
  Option add_option(const std::string& name, std::vector<std::string>& values,
                    const std::string& about);
  /// `take` returns what is wrong with a value, as a sentence about it, or "".
  Option add_option(const std::string& name, std::function<std::string(const std::string&)> take,
                    const std::string& about);
  Option add_flag(const std::string& name, bool& given, const std::string& about);
  /// Once the command line has been parsed: whether the option is on it.
  bool given(const std::string& option) const;
  /// Those added so far, and --help.
  std::vector<Option> options() const;
  const CLI::App& app() const noexcept { return *app_; }

 private:
  CLI::App* app_;
};

}  // namespace dckpt::tool
