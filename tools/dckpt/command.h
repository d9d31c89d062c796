#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/key_filter.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/tracker.h"
#include "strategies/contract/reader.h"
#include "tools/dckpt/parser.h"

namespace dckpt::tool {

/// A subcommand: how it is called, and what it does once its options have been parsed (returns the
/// exit code, throws CheckpointError).
struct Command {
  const CLI::App* parser;
  std::function<int()> run;
};

/// Each adds its subcommand to the program.
Command add_inspect(CLI::App& program);
Command add_verify(CLI::App& program);
Command add_digest(CLI::App& program);
Command add_diff(CLI::App& program);
Command add_explain(CLI::App& program);
Command add_extract(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_remove(CLI::App& program);
Command add_config(CLI::App& program);
Command add_formats(CLI::App& program);
Command add_completion(CLI::App& program);
Command add_help(CLI::App& program);  // last: it knows the others

/// A checkpoint named on the command line: its directory, a training root, or a file in it.
struct CheckpointArgument {
  std::string path;
  std::optional<IterationName> iteration{};
  KeyMapOptions map{};   ///< seen through it
  std::string policy{};  ///< whose load.backend opens it; empty: detected

  /// Errors name the path unless they name a file already.
  std::unique_ptr<CheckpointReader> open() const;
  OpenOptions open_options() const;
  /// The checkpoint that it leads to.
  Location location() const;
  /// The same for people.
  std::string resolved() const;
};

/// --iteration N, or another name of the option: which checkpoint of a training root, or `of` what.
void add_iteration(Parser command, const std::string& option,
                   std::optional<IterationName>& iteration,
                   const std::string& of = "Of a training root or local files");
/// PATH and --iteration.
void add_checkpoint(Parser command, CheckpointArgument& argument);
/// --policy FILE
void add_backend(Parser command, CheckpointArgument& argument);
/// --map NAME and --set NAME=VALUE
void add_map(Parser command, KeyMapOptions& map);
/// --json
void add_json(Parser command, bool& json);
/// --keys GLOB and --exclude GLOB, both repeatable.
void add_key_filter(Parser command, KeyFilter& filter);
/// An option with a whole number, in decimal digits whatever it begins with.
void add_number(Parser command, const std::string& option, const std::string& about, int largest,
                std::function<void(int)> take);
/// --threads N
void add_threads(Parser command, int& threads);

/// A report on stdout (json/reports.h).
void print_json(const std::string& text);

}  // namespace dckpt::tool
