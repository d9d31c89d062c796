#include "dckpt/cli.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/command.h"
#include "tools/dckpt/exit_code.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

constexpr const char* kAbout =
    "Inspect, verify, compare and convert Megatron-style sharded checkpoints.";
constexpr const char* kFooter =
    "A checkpoint is named by its directory, a training root (its latest iteration), or a file in "
    "it. dckpt COMMAND --help explains a command and gives examples.\n\n"
    "Examples:\n"
    "  dckpt inspect run/checkpoints\n"
    "  dckpt verify run/checkpoints --deep\n"
    "  dckpt diff before/iter_0001000 after/iter_0001000\n"
    "  dckpt convert iter_0001000 plain --to dcp\n\n"
    "Exit codes: 0 ok; 1 differs, or verification found a problem; 2 usage; 3 input/output; 4 "
    "corrupt or refused; 5 incomplete; 6 unsupported; 7 conflict (exists already, or another job "
    "is at work); 70 internal error; 128+n stopped by signal n";

using Commands = std::vector<Command>;

/// What to say when the first word is not a command.
std::string unknown_command(const std::string& word, const Commands& commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.parser->get_name());
  const std::optional<std::string> close = nearest(word, names);
  return str_format("there is no command {}{}", quote(word),
                    close ? str_format("; did you mean {}?", quote(*close))
                          : "; there are " + quoted_list(names, names.size()));
}

int usage_error(const std::string& message, const Command* command) {
  print_error(message);
  print_note(str_format("'dckpt {}--help' explains how to call it",
                        command != nullptr ? command->parser->get_name() + " " : std::string()));
  return kUsage;
}

int print_help_or_version(const CLI::App& program, const CLI::ParseError& asked) {
  std::ostringstream text;
  const int code = program.exit(asked, text, text);
  print_wrapped(text.str(), columns_of_prose());
  return code;
}

int run(int argc, char** argv) {
  CLI::App program(kAbout, "dckpt");
  program.footer(kFooter);
  program.set_version_flag("--version", "dckpt " DCKPT_VERSION, "Print the version");
  program.set_help_flag("-h,--help", "Print this help");
  program.get_formatter()->column_width(27);
  const Commands commands = {add_inspect(program), add_verify(program),  add_digest(program),
                             add_diff(program),    add_explain(program), add_extract(program),
                             add_convert(program), add_remove(program),  add_config(program),
                             add_formats(program)};
  if (argc == 1) {
    print_wrapped(program.help(), columns_of_prose());
    return kOk;
  }
  const std::string first = argv[1];
  const auto is_first = [&](const Command& command) { return command.parser->get_name() == first; };
  if (!first.starts_with('-') && std::ranges::none_of(commands, is_first))
    return usage_error(unknown_command(first, commands), nullptr);

  const auto chosen = [&]() -> const Command* {
    const auto found = std::ranges::find_if(
        commands, [](const Command& command) { return command.parser->parsed(); });
    return found == commands.end() ? nullptr : &*found;
  };
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return print_help_or_version(program, error);
    return usage_error(error.what(), chosen());
  }
  const Command* const command = chosen();
  if (command == nullptr) return usage_error("no command is given", nullptr);
  try {
    return command->run();
  } catch (const CheckpointError& error) {
    if (error.code() == ErrorCode::kInvalidArgument) return usage_error(error.what(), command);
    throw;
  }
}

/// Everything that can go wrong ends in a message and an exit code.
int guarded_run(int argc, char** argv) {
  try {
    const int code = run(argc, argv);
    flush_output();
    return code;
  } catch (...) {
    const CheckpointError error = current_error();
    print_error(error.what());
    return exit_code(error.code());
  }
}

}  // namespace
}  // namespace dckpt::tool

int dckpt::cli_main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe shows as a failed write
  std::signal(SIGXFSZ, SIG_IGN);  // so does a file that may not grow
  return tool::guarded_run(argc, argv);
}
