#include "tools/dckpt/grammar/command_spec.h"

#include <algorithm>

namespace dckpt::tool {
namespace {

constexpr std::size_t kNameColumns = 27;

/// Returns a row of --help. A long name is followed by a line of its own.
std::string row(const std::string& name, const std::string& about) {
  std::string text = "  " + name;
  if (text.size() >= kNameColumns)
    text += "\n" + std::string(kNameColumns, ' ');
  else
    text.append(kNameColumns - text.size(), ' ');
  return text + about + "\n";
}

std::string row(const OptionSpec& option) {
  std::string name;
  for (const std::string& one : option.names) name += (name.empty() ? "" : ",") + one;
  if (!option.type_name.empty()) name += " " + option.type_name;
  if (option.is_repeatable) name += " ...";
  if (option.is_required) name += " REQUIRED";
  if (!option.excludes.empty()) name += " Excludes:";
  for (const OptionSpec* const other : option.excludes) name += " " + other->main_name();
  return row(name, option.about);
}

std::string rows(const std::string& title, const CommandSpec& command, bool arguments) {
  std::string text;
  for (const OptionSpec& option : command.options) {
    if (option.is_argument() == arguments) text += row(option);
  }
  return text.empty() ? "" : "\n" + title + ":\n" + text;
}

/// Returns " A [B]".
std::string arguments_of(const CommandSpec& command) {
  std::string text;
  for (const OptionSpec& option : command.options) {
    if (option.is_argument())
      text += option.is_required ? " " + option.usage() : " [" + option.usage() + "]";
  }
  return text;
}

std::string full_name(const ProgramSpec& program, const CommandSpec& command) {
  return &command == &program ? program.name : program.name + " " + command.name;
}

}  // namespace

const std::string& OptionSpec::main_name() const {
  const auto name =
      std::ranges::find_if(names, [](const std::string& one) { return one.starts_with("--"); });
  return name == names.end() ? names.front() : *name;
}

std::string OptionSpec::usage() const {
  if (is_argument()) return main_name() + (is_repeatable ? "..." : "");
  return takes_value ? main_name() + " " + type_name : main_name();
}

CommandSpec::CommandSpec(std::string called, std::string does)
    : name(std::move(called)), about(std::move(does)) {
  options.push_back({.names = {"-h", "--help"},
                     .about = "Print this help",
                     .takes_value = false,
                     .take = [](const std::string&) { return std::string(); }});
}

OptionSpec* CommandSpec::find(std::string_view option) {
  const auto found = std::ranges::find_if(options, [&](const OptionSpec& one) {
    return !one.is_argument() && std::ranges::find(one.names, option) != one.names.end();
  });
  return found == options.end() ? nullptr : &*found;
}

CommandSpec* ProgramSpec::find_command(std::string_view command) {
  const auto found = std::ranges::find(commands, command, &CommandSpec::name);
  return found == commands.end() ? nullptr : &*found;
}

std::vector<std::string> ProgramSpec::command_names() const {
  std::vector<std::string> names;
  for (const CommandSpec& command : commands) names.push_back(command.name);
  return names;
}

std::string usage_line(const ProgramSpec& program, const CommandSpec& command) {
  std::string line = full_name(program, command) + " [OPTIONS]";
  for (const OptionSpec& option : command.options) {
    if (!option.is_argument() && option.is_required) line += " " + option.usage();
  }
  return line + arguments_of(command) + (&command == &program ? " COMMAND" : "");
}

std::string help_text(const ProgramSpec& program, const CommandSpec& command) {
  const bool whole = &command == &program;
  std::string text = command.about + "\nUsage: " + full_name(program, command) + " [OPTIONS]" +
                     arguments_of(command) + (whole ? " [SUBCOMMAND]" : "") + "\n" +
                     rows("Positionals", command, true) + rows("Options", command, false);
  if (whole) {
    text += "\nSubcommands:\n";
    for (const CommandSpec& one : program.commands) text += row(one.name, one.about);
  }
  return text + "\n" + (command.footer.empty() ? "" : command.footer + "\n");
}

std::string alternatives(const std::vector<std::string>& words, const std::string& last) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " " + last + " " : ", ") + words[i];
  return text;
}

}  // namespace dckpt::tool
