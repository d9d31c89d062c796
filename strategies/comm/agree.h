#pragma once

#include <functional>
#include <optional>
#include <string>

#include "mapping/base/api.h"
#include "mapping/base/error.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Runs local work between two collectives. `work` may throw on any rank; then every rank throws
/// the same CheckpointError, which names the ranks that failed and carries the first one's code and
/// context, with this rank's own error as its cause. `what` is the attempted work as text for
/// messages ("writing the shards").
void agree(Communicator& comm, const std::string& what, const std::function<void()>& work);

/// Runs `work` on rank 0 alone; every rank throws what it throws, unchanged. For work on data from
/// all ranks, whose errors are not rank 0's fault.
void decide(Communicator& comm, const std::function<void()>& work);

/// Like agree(), for work that has finished: `failure` is the error of this rank's work.
void agree(Communicator& comm, const std::string& what,
           const std::optional<CheckpointError>& failure);

/// Does the same and exchanges messages along with it: rank 0 joins `mine` of all ranks, in rank
/// order, and every rank gets the result. `join` may throw like `work`.
using JoinMessages = std::function<Bytes(const std::vector<Bytes>&)>;
Bytes agree(Communicator& comm, const std::string& what,
            const std::optional<CheckpointError>& failure, ByteView mine, const JoinMessages& join);

std::optional<CheckpointError> failure_of(const std::function<void()>& work);

}  // namespace dckpt
