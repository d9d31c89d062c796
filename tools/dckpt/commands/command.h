#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/key_filter.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/open/tracker.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"
#include "tools/dckpt/grammar/parser.h"

namespace dckpt::tool {

/// A subcommand: its description, and a function that runs it once its options have been parsed,
/// returns the exit code, and throws CheckpointError. Of several ranks, all call a function that
/// takes them; one that does not is called on rank 0 alone.
struct Command {
  const CommandSpec* spec;
  std::variant<std::function<int()>, std::function<int(Communicator&)>> run;
};
/// Throws CheckpointError (unsupported) if there are several ranks, which do not share this
/// command.
void require_one_rank(const Communicator& ranks, const std::string& command);

/// Each of these functions adds its subcommand to the program.
Command add_inspect(ProgramSpec& program);
Command add_verify(ProgramSpec& program);
Command add_digest(ProgramSpec& program);
Command add_stats(ProgramSpec& program);
Command add_diff(ProgramSpec& program);
Command add_explain(ProgramSpec& program);
Command add_report(ProgramSpec& program);
Command add_extract(ProgramSpec& program);
Command add_convert(ProgramSpec& program);
Command add_merge(ProgramSpec& program);
Command add_join(ProgramSpec& program);
Command add_remove(ProgramSpec& program);
Command add_doctor(ProgramSpec& program);
Command add_prune(ProgramSpec& program);
Command add_workers(ProgramSpec& program);
Command add_config(ProgramSpec& program);
Command add_formats(ProgramSpec& program);
Command add_completion(ProgramSpec& program);
Command add_help(ProgramSpec& program);  // last: it lists the others

/// A checkpoint named on the command line: a directory, a training root, or a file in a checkpoint.
struct CheckpointArgument {
  std::string path;
  std::optional<IterationName> iteration{};
  KeyMapOptions map{};   ///< key map that the checkpoint is opened with
  std::string policy{};  ///< policy whose load.backend and load.planner open it; empty: detected
  /// OpenOptions::planner, if the policy names none. Commands that look at what is stored clear it,
  /// and the planner of the policy does not count for them.
  std::string planner{kAutoStrategy};

  /// Opens the checkpoint. Errors name the path unless they already name a file.
  std::unique_ptr<CheckpointReader> open() const;
  /// A reader to show, and the one of what is stored if a planner makes what is shown.
  struct Shown {
    std::unique_ptr<CheckpointReader> reader;
    std::unique_ptr<CheckpointReader> stored{};
  };
  /// Opens it to be shown: as it is stored, with a note, if its planner is not in this program.
  Shown open_shown() const;
  /// Opens it on all ranks, collectively.
  std::unique_ptr<CheckpointReader> open(Communicator& ranks) const;
  OpenOptions open_options() const;
  /// Returns the checkpoint that the path and the iteration lead to.
  Location location() const;
  /// Returns the same as text for messages.
  std::string resolved() const;
};

/// Returns whether both lead to the same checkpoint. Local checkpoints of several iterations share
/// a directory.
bool lead_to_the_same(const CheckpointArgument& a, const CheckpointArgument& b);

/// Calls require_replaceable() of output_file.h, and require_outside() for the path and for what it
/// leads to.
void require_outside(const std::string& output, const CheckpointArgument& read);

/// Opens the checkpoint that is compared with `a`, the opened `first`. Applies the map of `first`
/// to it, too, if they have no key in common otherwise: both have the names that the map changes,
/// for example two Hugging Face folders. Collective.
std::unique_ptr<CheckpointReader> open_to_compare(const CheckpointReader& a,
                                                  const CheckpointArgument& first,
                                                  const CheckpointArgument& second,
                                                  Communicator& ranks);

/// Adds --iteration N, or `option` of the same kind, which selects a checkpoint of a training root.
/// `of` is the beginning of its help text.
void add_iteration(Parser command, const std::string& option,
                   std::optional<IterationName>& iteration,
                   const std::string& of = "Of a training root or local files");
/// Adds PATH and --iteration.
void add_checkpoint(Parser command, CheckpointArgument& argument, bool required = true);
/// Adds ROOT, a training root.
void add_root(Parser command, std::string& root);
/// Adds --dry-run and --apply, of which only the second changes something.
void add_apply(Parser command, bool& dry_run, bool& apply);
/// Adds --policy FILE.
void add_backend(Parser command, CheckpointArgument& argument);
/// Adds --map NAME and --set NAME=VALUE.
void add_map(Parser command, KeyMapOptions& map);
/// Adds --model-files FOLDER with this help text.
void add_model_files(Parser command, std::optional<Location>& folder, const std::string& about);
/// Adds --json.
void add_json(Parser command, bool& json);
/// Adds --keys GLOB and --exclude GLOB, both repeatable.
void add_key_filter(Parser command, KeyFilter& filter);
/// Adds an option whose value is a whole number, always read as decimal even with leading zeros.
void add_number(Parser command, const std::string& option, const std::string& about, int largest,
                std::function<void(int)> take);
/// Returns the number of cores, at least 1.
int all_cores();
/// Adds --threads N.
void add_threads(Parser command, int& threads);
/// Does the same, with all cores if it is not given.
void add_threads(Parser command, std::optional<int>& threads);

/// Prints a report (json/reports.h) on stdout.
void print_json(const std::string& text);

}  // namespace dckpt::tool
