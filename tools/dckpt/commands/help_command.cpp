#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/command_line.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/man_page.h"
#include "tools/dckpt/grammar/values.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct HelpArguments {
  std::string command;
  bool man = false;
};

int run_help(CLI::App& program, const HelpArguments& options) {
  CLI::App* const named = find_command(program, options.command);
  CLI::App& shown = named == nullptr ? program : *named;
  if (options.man) {
    const std::string page = man_page(program, shown);
    print_bytes(page.data(), page.size());
  } else {
    print_wrapped(help_of(program, shown), columns_of_prose());
  }
  return kOk;
}

}  // namespace

Command add_help(CLI::App& program) {
  const auto options = std::make_shared<HelpArguments>();
  CLI::App& command = *program.add_subcommand(
      "help", "Explain a command, as COMMAND --help does, or print its manual page");
  command.footer(
      "Examples:\n"
      "  dckpt help convert\n"
      "  dckpt help convert --man | man -l -");
  command.add_option("COMMAND", options->command, "Command to explain; without one, the overview")
      ->type_name("")
      ->check(one_of(command_names(program)));
  command.add_flag("--man", options->man, "Print the manual page, for man or groff");
  return {&command, [&program, options] { return run_help(program, *options); }};
}

}  // namespace dckpt::tool
