#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/man_page.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct HelpArguments {
  std::string command;
  bool man = false;
};

int run_help(ProgramSpec& program, const HelpArguments& options) {
  const CommandSpec* const named = program.find_command(options.command);
  const CommandSpec& shown = named == nullptr ? program : *named;
  if (options.man) {
    const std::string page = man_page(program, shown);
    print_bytes(page.data(), page.size());
  } else {
    print_wrapped(help_text(program, shown), columns_of_prose());
  }
  return kOk;
}

}  // namespace

Command add_help(ProgramSpec& program) {
  const auto options = std::make_shared<HelpArguments>();
  Parser command(program, "help",
                 "Explain a command, as COMMAND --help does, or print its manual page");
  command.footer(
      "Examples:\n"
      "  dckpt help convert\n"
      "  dckpt help convert --man | man -l -");
  command.add_option("COMMAND", options->command, "Command to explain; without one, the overview")
      .type_name("")
      .one_of(program.command_names());
  command.add_flag("--man", options->man, "Print the manual page, for man or groff");
  return {&command.spec(), [&program, options] { return run_help(program, *options); }};
}

}  // namespace dckpt::tool
