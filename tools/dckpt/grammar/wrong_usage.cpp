#include "tools/dckpt/grammar/wrong_usage.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/grammar/similar_path.h"

namespace dckpt::tool {
namespace {

std::vector<std::string> option_names(const CommandSpec& command) {
  std::vector<std::string> names;
  for (const OptionSpec& option : command.options) {
    for (const std::string& name : option.names) {
      if (name.starts_with("--")) names.push_back(name);
    }
  }
  return names;
}

/// Returns a name that begins with the word, or else the nearest one.
std::optional<std::string> likely(const std::string& word, const std::vector<std::string>& names) {
  constexpr std::size_t kShortest = 4;  // "--de"
  const auto begins_so = [&](const std::string& name) { return name.starts_with(word); };
  const auto found = word.size() < kShortest ? names.end() : std::ranges::find_if(names, begins_so);
  return found != names.end() ? *found : nearest(word, names);
}

std::string no_such_option(ProgramSpec& program, const CommandSpec& command,
                           const std::string& option) {
  const bool of_command = &command != &program;
  const std::string message = str_format("there is no option {}{}", quote(option),
                                         of_command ? " of " + command.name : std::string());
  std::vector<std::string> others;  // commands that have it
  for (CommandSpec& other : program.commands) {
    if (&other != &command && other.find(option) != nullptr) others.push_back(other.name);
  }
  if (!of_command && !others.empty())
    return str_format("{}; options of a command stand behind it: {} {} {}", message, program.name,
                      others.front(), option);
  if (!others.empty())
    return str_format("{}; {} {} it", message, alternatives(others, "and"),
                      others.size() == 1 ? "has" : "have");
  if (const auto close = likely(option, option_names(command)))
    return str_format("{}; did you mean {}?", message, quote(*close));
  return message;
}

std::string too_many_arguments(const CommandSpec& command, const std::string& argument) {
  std::string taken;
  for (const OptionSpec& option : command.options) {
    if (option.is_argument()) taken += (taken.empty() ? "" : " ") + option.usage();
  }
  return str_format("{} is one argument too many: {} takes {}", quote(argument), command.name,
                    taken.empty() ? "none" : taken);
}

/// Returns "PATH and --prefix TEXT".
std::string missing(const CommandLine& line) {
  std::vector<std::string> names;
  for (const OptionSpec& option : line.command->options) {
    if (option.is_required && line.find(option) == nullptr) names.push_back(option.usage());
  }
  return alternatives(names, "and");
}

/// Returns two options of the line that exclude each other; null if there are none.
std::pair<const OptionSpec*, const OptionSpec*> contradiction(const CommandLine& line) {
  for (const OptionSpec& option : line.command->options) {
    if (line.find(option) == nullptr) continue;
    for (const OptionSpec* const other : option.excludes) {
      if (line.find(*other) != nullptr) return {&option, other};
    }
  }
  return {};
}

}  // namespace

std::optional<Refusal> find_mistake(ProgramSpec& program, const CommandLine& line,
                                    const std::string& problem) {
  const auto find_unknown = [&](bool is_argument) {
    return std::ranges::find_if(line.given, [&](const Given& given) {
      return given.option == nullptr && given.is_argument == is_argument;
    });
  };
  // An argument that is too many may be the value of an option that does not exist.
  if (const auto option = find_unknown(false); option != line.given.end())
    return Refusal{no_such_option(program, *line.command, option->name)};
  if (line.expects != nullptr)
    return Refusal{
        str_format("{} needs a value: {}", line.expects->main_name(), line.expects->usage())};
  if (const auto unknown = find_unknown(true); unknown != line.given.end()) {
    if (line.command == &program) return Refusal{unknown_command(program, unknown->name)};
    return Refusal{too_many_arguments(*line.command, unknown->name), true};
  }
  if (!problem.empty()) return Refusal{problem};
  if (const std::string names = missing(line); !names.empty())
    return Refusal{str_format("{} needs {}", line.command->name, names), true};
  if (const auto [one, other] = contradiction(line); one != nullptr)
    return Refusal{
        str_format("{} excludes {}: leave one of them out", one->main_name(), other->main_name())};
  return std::nullopt;
}

std::optional<Refusal> find_odd_value(const CommandLine& line) {
  std::unordered_set<const OptionSpec*> seen;
  for (const Given& given : line.given) {
    if (given.option == nullptr || given.is_argument) continue;
    const OptionSpec& option = *given.option;
    const std::string& name = option.main_name();
    if (!option.takes_value) {
      if (!given.value) continue;
      return Refusal{str_format("{} takes no value, found {}; give it alone, or leave it out", name,
                                quote(*given.value))};
    }
    if (option.is_repeatable) continue;  // the commands test each of their values
    if (given.value && given.value->empty())
      return Refusal{str_format("{}: found '', expected a value ({}); give one, or leave it out",
                                name, option.usage())};
    if (!seen.insert(&option).second)
      return Refusal{str_format("{} is given twice; give it once", name)};
  }
  return std::nullopt;
}

std::string unknown_command(const ProgramSpec& program, const std::string& word) {
  const std::vector<std::string> names = program.command_names();
  const std::optional<std::string> close = nearest(word, names);
  return str_format("there is no command {}{}", quote(word),
                    close ? str_format("; did you mean {}?", quote(*close))
                          : "; there are " + quoted_list(names, names.size()));
}

CheckpointError with_suggested_path(const CheckpointError& error, const CommandLine& line) {
  if (error.code() != ErrorCode::kIo) return error;
  for (const Given& given : line.given) {
    if (given.option == nullptr || !given.value) continue;
    const Takes kind = given.option->kind;
    if (kind != Takes::kCheckpoint && kind != Takes::kPolicy && kind != Takes::kPolicyOrMap &&
        kind != Takes::kMap)
      continue;
    if (const std::optional<std::string> close = similar_path(*given.value))
      return CheckpointError(error.code(),
                             str_format("{}; did you mean {}?", error.message(), quote(*close)),
                             error.context(), error.cause());
  }
  return error;
}

CheckpointError with_place_of_options(const CheckpointError& error, ProgramSpec& program,
                                      const CommandLine& line) {
  const std::string& command = line.command->name;
  const std::string& message = error.message();
  if ((command != "merge" && command != "join") || message.find("convert --") != std::string::npos)
    return error;
  CommandSpec* const convert = program.find_command("convert");
  std::vector<std::string> of_convert;
  for (std::size_t at = message.find("--"); at != std::string::npos;
       at = message.find("--", at + 2)) {
    const std::string option =
        message.substr(at, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at) - at);
    if (convert->find(option) != nullptr && line.command->find(option) == nullptr &&
        std::ranges::find(of_convert, option) == of_convert.end())
      of_convert.push_back(option);
  }
  if (of_convert.empty()) return error;
  return CheckpointError(
      error.code(),
      str_format("{}; {} {} of dckpt convert: convert each model with it first, or {} to another "
                 "format (--to) and convert the result",
                 message, alternatives(of_convert, "and"),
                 of_convert.size() == 1 ? "is an option" : "are options", command),
      error.context(), error.cause());
}

}  // namespace dckpt::tool
