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

const Command* Program::find(const CommandSpec& command) const {
  const auto found = std::ranges::find(commands, &command, &Command::spec);
  return found == commands.end() ? nullptr : &*found;
}

Program make_program() {
  Program program{.spec = std::make_unique<ProgramSpec>("dckpt", kAbout)};
  ProgramSpec& spec = *program.spec;
  spec.footer = kProgramFooter;
  Parser options(spec);
  options.add_flag("--version", program.request->version,
                   "Print the version, and what it was built with");
  options.add_flag("--json", program.request->json, "Print the version as JSON");
  program.commands = {add_inspect(spec), add_verify(spec),     add_digest(spec), add_stats(spec),
                      add_diff(spec),    add_explain(spec),    add_report(spec), add_extract(spec),
                      add_convert(spec), add_merge(spec),      add_join(spec),   add_remove(spec),
                      add_workers(spec), add_doctor(spec),     add_prune(spec),  add_config(spec),
                      add_formats(spec), add_completion(spec), add_help(spec)};
  return program;
}

}  // namespace dckpt::tool
