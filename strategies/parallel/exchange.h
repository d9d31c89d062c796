#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/schedule.h"

namespace dckpt {

/// What a rank does itself in an exchange. Each of them may throw.
struct ExchangeSteps {
  using Transfer = ExchangeSchedule::Transfer;

  std::string what;  ///< is attempted, for errors: "reading tensors"
  /// Called before a round is packed, and with the number of rounds at the end.
  std::function<void(std::uint32_t round)> prepare;
  std::function<void(const Transfer& transfer, MutableByteView into)> pack;
  std::function<void(const Transfer& transfer, ByteView from)> unpack;
};

/// Carries out a schedule. Collective, with schedules of the same messages on all ranks. If a step
/// throws on any rank, all ranks throw the same CheckpointError before the next round, or at the
/// end.
void run_exchange(const ExchangeSchedule& schedule, Exchange how, const ExchangeSteps& steps,
                  Communicator& comm);

}  // namespace dckpt
