#include "tools/dckpt/grammar/wrong_usage.h"

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/grammar/similar_path.h"
#include "tools/dckpt/grammar/values.h"

namespace dckpt::tool {
namespace {

std::vector<std::string> option_names(CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : command.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
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

std::string no_such_option(CLI::App& program, CLI::App& command, const std::string& option) {
  const bool of_command = &command != &program;
  const std::string message = str_format("there is no option {}{}", quote(option),
                                         of_command ? " of " + command.get_name() : std::string());
  std::vector<std::string> others;  // commands that have it
  for (CLI::App* const other : program.get_subcommands({})) {
    if (other != &command && other->get_option_no_throw(option) != nullptr)
      others.push_back(other->get_name());
  }
  if (!of_command && !others.empty())
    return str_format("{}; options of a command stand behind it: {} {} {}", message,
                      program.get_name(), others.front(), option);
  if (!others.empty())
    return str_format("{}; {} {} it", message, alternatives(others, "and"),
                      others.size() == 1 ? "has" : "have");
  if (const auto close = likely(option, option_names(command)))
    return str_format("{}; did you mean {}?", message, quote(*close));
  return message;
}

std::string too_many_arguments(CLI::App& command, const std::string& argument) {
  std::string taken;
  for (const CLI::Option* const option : command.get_options({})) {
    if (option->get_positional()) taken += (taken.empty() ? "" : " ") + usage_of(*option);
  }
  return str_format("{} is one argument too many: {} takes {}", quote(argument), command.get_name(),
                    taken.empty() ? "none" : taken);
}

/// Returns "PATH and --prefix TEXT".
std::string missing(const CommandLine& line) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : line.app->get_options({})) {
    if (option->get_required() && line.find(option) == nullptr) names.push_back(usage_of(*option));
  }
  return alternatives(names, "and");
}

}  // namespace

Refusal explain_refusal(CLI::App& program, const CommandLine& line, const CLI::ParseError& error) {
  const auto find_unknown = [&](bool is_argument) {
    return std::ranges::find_if(line.given, [&](const Given& given) {
      return given.option == nullptr && given.is_argument == is_argument;
    });
  };
  // An argument that is too many may be the value of an option that does not exist.
  if (const auto option = find_unknown(false); option != line.given.end())
    return {no_such_option(program, *line.app, option->name)};
  const auto unknown = find_unknown(true);
  if (line.expects != nullptr)
    return {str_format("{} needs a value: {}", main_name(*line.expects), usage_of(*line.expects))};
  if (unknown != line.given.end() && line.app != &program)
    return {too_many_arguments(*line.app, unknown->name), true};
  const bool lacks = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (const std::string names = missing(line); lacks && !names.empty())
    return {str_format("{} needs {}", line.app->get_name(), names), true};
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExcludesError))
    return {str_format("{}: leave one of them out", error.what())};
  return {error.what()};
}

std::optional<Refusal> refuse_silent(const CommandLine& line) {
  std::unordered_set<const CLI::Option*> seen;
  for (const Given& given : line.given) {
    if (given.option == nullptr || given.is_argument) continue;
    const CLI::Option& option = *given.option;
    const std::string name = main_name(option);
    if (!takes_value(option)) {
      if (!given.value) continue;
      return Refusal{str_format("{} takes no value, found {}; give it alone, or leave it out", name,
                                quote(*given.value))};
    }
    if (takes_many(option)) continue;  // the checks of repeatable options test their values
    if (given.value && given.value->empty())
      return Refusal{str_format("{}: found '', expected a value ({}); give one, or leave it out",
                                name, usage_of(option))};
    if (!seen.insert(&option).second)
      return Refusal{str_format("{} is given twice; give it once", name)};
  }
  return std::nullopt;
}

std::string unknown_command(CLI::App& program, const std::string& word) {
  const std::vector<std::string> names = command_names(program);
  const std::optional<std::string> close = nearest(word, names);
  return str_format("there is no command {}{}", quote(word),
                    close ? str_format("; did you mean {}?", quote(*close))
                          : "; there are " + quoted_list(names, names.size()));
}

CheckpointError with_suggested_path(const CheckpointError& error, const CommandLine& line) {
  if (error.code() != ErrorCode::kIo) return error;
  for (const Given& given : line.given) {
    if (given.option == nullptr || !given.value) continue;
    const Takes kind = values_of(*given.option).kind;
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

CheckpointError with_place_of_options(const CheckpointError& error, CLI::App& program,
                                      const CommandLine& line) {
  const std::string command = line.app->get_name();
  const std::string& message = error.message();
  if ((command != "merge" && command != "join") || message.find("convert --") != std::string::npos)
    return error;
  CLI::App* const convert = find_command(program, "convert");
  std::vector<std::string> of_convert;
  for (std::size_t at = message.find("--"); at != std::string::npos;
       at = message.find("--", at + 2)) {
    const std::string option =
        message.substr(at, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at) - at);
    if (convert->get_option_no_throw(option) != nullptr &&
        line.app->get_option_no_throw(option) == nullptr &&
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
