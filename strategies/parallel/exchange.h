#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/parallel/schedule.h"

namespace dckpt {

/// What a rank does itself in an exchange. Each of them may throw.
struct ExchangeSteps {
  using Transfer = ExchangeSchedule::Transfer;

  struct Outgoing {
    Transfer transfer;
    MutableByteView into;
  };
  struct Incoming {
    Transfer transfer;
    ByteView from;
  };

  std::string what;  ///< is attempted, for errors: "reading tensors"
  /// Called before a round is packed, and with the number of rounds at the end.
  std::function<void(std::uint32_t round)> prepare;
  std::function<void(std::span<const Outgoing> messages)> pack;  ///< all of a round
  std::function<void(std::span<const Incoming> messages)> unpack;
  /// Both or none; used if the communicator is a DeviceExchange. Where the bytes of a transfer are
  /// on that device: in one box, or in each of several that receive them. Without a box it is
  /// packed, or unpacked.
  std::function<std::vector<DeviceBox>(const Transfer& transfer)> sent_from{};
  std::function<std::vector<DeviceBox>(const Transfer& transfer)> received_into{};
};

/// Carries out a schedule. Collective, with schedules of the same messages on all ranks. If a step
/// throws on any rank, all ranks throw the same CheckpointError before the next round, or at the
/// end.
void run_exchange(const ExchangeSchedule& schedule, const ExchangeSteps& steps, Communicator& comm);

}  // namespace dckpt
