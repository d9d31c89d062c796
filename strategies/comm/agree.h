#pragma once

#include <functional>
#include <optional>
#include <string>

#include "mapping/base/error.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Runs local work between two collectives: `work` may throw on any rank, and then every rank
/// throws the same CheckpointError, which names the ranks that failed and carries the first one's
/// code and context, and as its cause this rank's own. `what` says what was attempted ("writing the
/// shards").
void agree(Communicator& comm, const std::string& what, const std::function<void()>& work);

/// Rank 0 decides for all: `work` runs there, and what it throws every rank throws, as it is. For
/// work on what all ranks have sent, whose mistakes are not rank 0's.
void decide(Communicator& comm, const std::function<void()>& work);

/// As agree(), for work that is over: `failure` is what this rank's has thrown.
void agree(Communicator& comm, const std::string& what,
           const std::optional<CheckpointError>& failure);
std::optional<CheckpointError> failure_of(const std::function<void()>& work);

}  // namespace dckpt
