#include "tools/dckpt/grammar/command_line.h"

#include <algorithm>

namespace dckpt::tool {
namespace {

std::vector<CLI::Option*> arguments_of(CLI::App& command) {
  return command.get_options([](CLI::Option* option) { return option->get_positional(); });
}

/// Returns whether the word is a dash and not a number: "-" is standard output, and "-1" a value.
bool looks_like_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
}

/// Reads "--name", "--name=value", "-n" and "-nvalue".
Given read_option(CLI::App& app, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
  Given given{.name = word.substr(0, end)};
  given.option = app.get_option_no_throw(given.name);
  if (!is_long && given.option == nullptr) given.name = word;
  if (end < word.size()) given.value = word.substr(is_long ? end + 1 : end);
  return given;
}

}  // namespace

const Given* CommandLine::find(const CLI::Option* option) const {
  const auto found = std::find_if(given.rbegin(), given.rend(),
                                  [&](const Given& one) { return one.option == option; });
  return found == given.rend() ? nullptr : &*found;
}

CommandLine read_command_line(CLI::App& program, std::span<const std::string> words) {
  CommandLine line{.app = &program};
  for (const std::string& word : words) {
    if (line.expects != nullptr) {
      line.given.back().value = word;
      line.expects = nullptr;
    } else if (!line.only_arguments && word == "--") {
      line.only_arguments = true;
    } else if (!line.only_arguments && looks_like_option(word)) {
      line.given.push_back(read_option(*line.app, word));
      const Given& given = line.given.back();
      if (given.option != nullptr && takes_value(*given.option) && !given.value)
        line.expects = given.option;
    } else if (CLI::App* const command =
                   line.app == &program ? find_command(program, word) : nullptr) {
      line.app = command;
      line.free = arguments_of(*command);
    } else {
      CLI::Option* const option = line.free.empty() ? nullptr : line.free.front();
      if (option != nullptr && !takes_many(*option)) line.free.erase(line.free.begin());
      line.given.push_back({.option = option, .name = word, .value = word, .is_argument = true});
    }
  }
  return line;
}

CLI::App* find_command(CLI::App& program, const std::string& name) {
  for (CLI::App* const command : program.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

std::vector<std::string> command_names(CLI::App& program) {
  std::vector<std::string> names;
  for (const CLI::App* const command : program.get_subcommands({}))
    names.push_back(command->get_name());
  return names;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_min() > 0;
}

bool takes_many(const CLI::Option& argument) {
  return argument.get_items_expected_max() > 1;
}

std::string main_name(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true, false);
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return "-" + option.get_snames().front();
}

std::string usage_of(const CLI::Option& option) {
  if (option.get_positional()) return main_name(option) + (takes_many(option) ? "..." : "");
  if (!takes_value(option)) return main_name(option);
  return main_name(option) + " " + option.get_type_name();
}

std::string usage_line(CLI::App& program, CLI::App& command) {
  std::string line = program.get_name();
  if (&command != &program) line += " " + command.get_name();
  line += " [OPTIONS]";
  std::string arguments;
  for (const CLI::Option* const option : command.get_options({})) {
    if (option->get_positional())
      arguments +=
          option->get_required() ? " " + usage_of(*option) : " [" + usage_of(*option) + "]";
    else if (option->get_required())
      line += " " + usage_of(*option);
  }
  if (&command == &program) arguments += " COMMAND";
  return line + arguments;
}

}  // namespace dckpt::tool
