#include "tools/dckpt/command.h"

#include <CLI/CLI.hpp>

#include "dist_checkpointing/open.h"
#include "mapping/base/error.h"
#include "strategies/formats/json/json.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {

std::unique_ptr<CheckpointReader> CheckpointArgument::open() const {
  return with_context({.file = path}, [&] { return open_checkpoint(path, {.iteration = iteration}); });
}

std::string CheckpointArgument::resolved() const { return resolve_checkpoint(path, {.iteration = iteration}).string(); }

void add_checkpoint(CLI::App& command, CheckpointArgument& argument) {
  command.add_option("PATH", argument.path, "Checkpoint directory, training root, or a file of a checkpoint")->required()->type_name("");
  command.add_option("--iteration", argument.iteration, "Of a training root: this iteration, not the latest")->type_name("N");
}

void add_json(CLI::App& command, bool& json) { command.add_flag("--json", json, "Print JSON for programs"); }

void add_key_filter(CLI::App& command, KeyFilter& filter) {
  command.add_option("--keys", filter.include, "Only keys that match this pattern (* ? [a-z]); repeatable")->type_name("GLOB")->allow_extra_args(false);
  command.add_option("--exclude", filter.exclude, "No keys that match this pattern; repeatable")->type_name("GLOB")->allow_extra_args(false);
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Threads that read and compute [" + std::to_string(threads) + "]")
      ->type_name("N")
      ->check(CLI::Range(1, 1024).description(""));
}

void print_json(const Value& value) { print(to_json(value, 2) + "\n"); }

Value to_json_list(ShapeView shape) { return Value::list(ValueList(shape.begin(), shape.end())); }

}  // namespace dckpt::tool
