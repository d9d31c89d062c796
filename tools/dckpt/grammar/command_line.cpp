#include "tools/dckpt/grammar/command_line.h"

#include <algorithm>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

/// Returns whether the word is a dash and not a number: "-" is standard output, and "-1" a value.
bool looks_like_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9');
}

/// Reads "--name", "--name=value", "-n" and "-nvalue".
Given read_option(CommandSpec& command, const std::string& word) {
  const bool is_long = word.starts_with("--");
  const std::size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
  Given given{.name = word.substr(0, end)};
  given.option = command.find(given.name);
  if (!is_long && given.option == nullptr) given.name = word;
  if (end < word.size()) given.value = word.substr(is_long ? end + 1 : end);
  return given;
}

std::string unknown_choice(const std::string& found, const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, found) != choices.end()) return "";
  const std::optional<std::string> close = nearest(found, choices);
  return str_format("found {}, expected {}{}", quote(found), alternatives(choices, "or"),
                    close ? str_format("; did you mean {}?", quote(*close)) : std::string());
}

}  // namespace

const Given* CommandLine::find(const OptionSpec& option) const {
  const auto found = std::find_if(given.rbegin(), given.rend(),
                                  [&](const Given& one) { return one.option == &option; });
  return found == given.rend() ? nullptr : &*found;
}

CommandLine read_command_line(ProgramSpec& program, std::span<const std::string> words) {
  CommandLine line{.command = &program};
  for (const std::string& word : words) {
    if (line.expects != nullptr) {
      line.given.back().value = word;
      line.expects = nullptr;
    } else if (!line.only_arguments && word == "--") {
      line.only_arguments = true;
    } else if (!line.only_arguments && looks_like_option(word)) {
      line.given.push_back(read_option(*line.command, word));
      const Given& given = line.given.back();
      if (given.option != nullptr && given.option->takes_value && !given.value)
        line.expects = given.option;
    } else if (CommandSpec* const command =
                   line.command == &program ? program.find_command(word) : nullptr) {
      line.command = command;
      for (OptionSpec& option : command->options) {
        if (option.is_argument()) line.free.push_back(&option);
      }
    } else {
      OptionSpec* const option = line.free.empty() ? nullptr : line.free.front();
      if (option != nullptr && !option->is_repeatable) line.free.erase(line.free.begin());
      line.given.push_back({.option = option, .name = word, .value = word, .is_argument = true});
    }
  }
  return line;
}

std::string take_values(const CommandLine& line) {
  for (const Given& given : line.given) {
    if (given.option == nullptr) continue;
    OptionSpec& option = *given.option;
    ++option.given;
    const std::string value = given.value.value_or("");
    std::string problem;
    if (option.kind == Takes::kChoice) problem = unknown_choice(value, option.choices);
    if (problem.empty()) problem = option.take(value);
    if (!problem.empty()) return option.main_name() + ": " + problem;
  }
  return "";
}

}  // namespace dckpt::tool
