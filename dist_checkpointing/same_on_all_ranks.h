#pragma once

#include <span>
#include <string>

#include "strategies/comm/communicator.h"

namespace dckpt {

/// Something that every rank must be given alike.
struct SharedArgument {
  std::string what;  ///< in messages, plural: "iterations"
  /// Its value; of one with several lines, messages show the first line that differs.
  std::string text;
};

/// Throws CheckpointError (invalid argument) on all ranks if they were given different things:
/// what, and which ranks have what. `attempt` is what they are about to do ("save"). Collective:
/// every rank passes the same number of arguments. Where all agree, one small reduction is all that
/// is exchanged.
void require_same(Communicator& comm, const std::string& attempt,
                  std::span<const SharedArgument> arguments);

}  // namespace dckpt
