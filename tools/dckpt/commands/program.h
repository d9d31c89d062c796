#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/dckpt/commands/command.h"

namespace dckpt::tool {

/// The tool's description of itself, from which help, manual pages, completion and usage errors are
/// generated.
struct Program {
  /// The options --version and --json without a command.
  struct Request {
    bool version = false;
    bool json = false;
  };

  std::unique_ptr<ProgramSpec> spec = nullptr;
  std::vector<Command> commands{};
  std::unique_ptr<Request> request = std::make_unique<Request>();

  /// Returns the command with this description; null for the program itself.
  const Command* find(const CommandSpec& command) const;
};

Program make_program();

/// Prints the candidates for the end of an unfinished line (completion_scripts.h), or nothing if
/// that takes too long. Ignores all errors.
int answer_shell(Program& program, const std::string& line);

/// Writes manual pages and completion scripts below `folder`, laid out as below share/ when
/// installed. Throws CheckpointError (io).
int write_extras(Program& program, const std::string& folder);

}  // namespace dckpt::tool
