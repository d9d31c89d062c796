#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/interruption.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct RemoveArguments {
  CheckpointArgument checkpoint;
  std::string prefix;
  bool dry_run = false;
  bool json = false;
};

void print_removed(const RemovedTensors& removed, bool dry_run) {
  print(str_format("keys   {} and {}\n", counted(removed.tensors, "tensor"),
                   counted(removed.objects, "object")));
  print(str_format("files  {} of {}\n", counted(removed.files.size(), "data file"),
                   human_bytes(removed.bytes_freed)));
  if (removed.bytes_kept > 0) {
    print(
        str_format("note: {} stay in files that hold other keys too; 'dckpt convert --exclude' "
                   "makes a copy without them\n",
                   human_bytes(removed.bytes_kept)));
  }
  print(dry_run ? styled(Style::kYellow, "dry run: nothing was removed") + "\n"
                : styled(Style::kGreen, "removed") + "\n");
}

int run_remove(const RemoveArguments& options, const std::stop_token& stop) {
  const RemovedTensors removed = with_context({.file = options.checkpoint.path}, [&] {
    return remove_sharded_tensors(
        options.checkpoint.path, options.prefix,
        {.dry_run = options.dry_run, .iteration = options.checkpoint.iteration, .stop = stop});
  });
  if (options.json)
    print_json(to_json(removed, options.checkpoint.resolved(), options.prefix, options.dry_run));
  else
    print_removed(removed, options.dry_run);
  return kOk;
}

}  // namespace

Command add_remove(ProgramSpec& program) {
  const auto options = std::make_shared<RemoveArguments>();
  Parser command(program, "remove",
                 "Take the tensors and objects with a prefix out of a checkpoint, in place");
  command.footer(
      "Data files that hold nothing else are deleted (save with separation_hint to have them so); "
      "files that hold other keys too stay as they are. The common state is never removed. It "
      "cannot be undone: "
      "look with --dry-run first. A crash leaves the checkpoint as it was or without the keys.\n\n"
      "Examples:\n"
      "  dckpt remove iter_0001000 --prefix optimizer --dry-run\n"
      "  dckpt remove iter_0001000 --prefix optimizer --json | jq '.bytes_freed'");
  add_checkpoint(command, options->checkpoint);
  command.add_option("--prefix", options->prefix, "What the keys begin with")
      .required()
      .type_name("TEXT")
      .takes(Takes::kKey);
  command.add_flag("--dry-run", options->dry_run, "Report, change nothing");
  add_json(command, options->json);
  return {&command.spec(), [options](Communicator& ranks) {
            require_one_rank(ranks, "remove");
            Interruption interruption;
            return interruption.run([&] { return run_remove(*options, interruption.token()); });
          }};
}

}  // namespace dckpt::tool
