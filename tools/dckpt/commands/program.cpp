#include "tools/dckpt/commands/program.h"

#include <algorithm>

namespace dckpt::tool {
namespace {

constexpr const char* kAbout =
    "Inspect, verify, compare and convert Megatron-style sharded checkpoints.";
constexpr const char* kProgramFooter =
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

}  // namespace

const Command* Program::chosen() const {
  const auto found = std::ranges::find_if(
      commands, [](const Command& command) { return command.parser->parsed(); });
  return found == commands.end() ? nullptr : &*found;
}

Program make_program() {
  Program program{.app = std::make_unique<CLI::App>(kAbout, "dckpt")};
  CLI::App& app = *program.app;
  app.footer(kProgramFooter);
  app.require_subcommand(0, 1);  // an argument may equal the name of a command
  app.set_help_flag("-h,--help", "Print this help");
  app.add_flag("--version", program.request->version,
               "Print the version, and what it was built with");
  app.add_flag("--json", program.request->json, "Print the version as JSON");
  app.get_formatter()->column_width(27);
  program.commands = {add_inspect(app), add_verify(app),     add_digest(app), add_stats(app),
                      add_diff(app),    add_explain(app),    add_report(app), add_extract(app),
                      add_convert(app), add_merge(app),      add_join(app),   add_remove(app),
                      add_workers(app), add_doctor(app),     add_prune(app),  add_config(app),
                      add_formats(app), add_completion(app), add_help(app)};
  return program;
}

std::string help_of(CLI::App& program, CLI::App& command) {
  const std::string name =
      program.get_name() + (&command == &program ? "" : " " + command.get_name());
  return command.get_formatter()->make_help(&command, name, CLI::AppFormatMode::Normal);
}

}  // namespace dckpt::tool
