#pragma once

#include <chrono>
#include <functional>

#include "strategies/comm/communicator.h"

namespace dckpt {

/// Runs `body` once per rank, each on a thread of its own, with communicators that connect them,
/// and joins all. If ranks throw, the first of them in rank order is rethrown after all have ended
/// (ranks that wait for a thrown one get an error at once).
void run_ranks(int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace dckpt
