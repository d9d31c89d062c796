#pragma once

#include <chrono>
#include <functional>

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Runs `body` once per rank, each in its own thread, with communicators that connect them, and
/// joins all. If ranks throw, rethrows the error of the first in rank order after all have ended
/// (ranks that wait for a failed one get an error at once). If the threads cannot all be started,
/// no rank begins, and a CheckpointError (io) is thrown.
void run_ranks(int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace dckpt
