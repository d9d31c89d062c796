#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "tools/dckpt/command.h"

namespace dckpt::tool {

/// The tool as it describes itself: help, manual pages, completion and the messages about wrong
/// usage are made of it.
struct Program {
  /// What --version and --json ask for, without a command.
  struct Request {
    bool version = false;
    bool json = false;
  };

  std::unique_ptr<CLI::App> app = nullptr;
  std::vector<Command> commands{};
  std::unique_ptr<Request> request = std::make_unique<Request>();

  /// The one that was parsed; null if none was.
  const Command* chosen() const;
};

Program make_program();

/// What --help says of the program, or of one of its commands.
std::string help_of(CLI::App& program, CLI::App& command);

/// Prints what a shell can offer at the end of an unfinished line (completion_scripts.h); nothing
/// if that takes too long. Silent about whatever is wrong.
int answer_shell(Program& program, const std::string& line);

/// Writes manual pages and completion scripts below `folder`, as they are installed below share/.
/// Throws CheckpointError (io).
int write_extras(Program& program, const std::string& folder);

}  // namespace dckpt::tool
