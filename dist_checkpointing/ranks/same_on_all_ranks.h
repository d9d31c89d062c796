#pragma once

#include <span>
#include <string>

#include "mapping/base/fingerprint.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// An argument that must be the same on every rank.
struct SharedArgument {
  std::string what;  ///< plural noun for messages: "iterations"
  /// Its value; for several lines, messages show the first line that differs.
  std::string text;
};

/// Throws CheckpointError (invalid argument) on all ranks if their arguments differ; the message
/// says which ranks have what. `attempt` is the operation they are about to start ("save").
/// Collective: every rank passes the same number of arguments. If all agree, only two numbers per
/// argument are reduced over the ranks.
void require_same(Communicator& comm, const std::string& attempt,
                  std::span<const SharedArgument> arguments);

/// Returns whether all ranks have the same fingerprint. Collective; four numbers are reduced.
bool is_same_on_all_ranks(const Fingerprint& fingerprint, Communicator& comm);

}  // namespace dckpt
