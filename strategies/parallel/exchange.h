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

/// The steps of an exchange that each rank does itself. Each of them may throw.
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

  std::string what;  ///< the attempted work, for errors: "reading tensors"
  /// Called before a round is packed, and with the number of rounds at the end.
  std::function<void(std::uint32_t round)> prepare;
  std::function<void(std::span<const Outgoing> messages)> pack;  ///< packs all messages of a round
  std::function<void(std::span<const Incoming> messages)> unpack;
  /// Return the boxes with a transfer's bytes on the communicator's device: one, or for receiving
  /// one or several. A transfer without boxes is packed, or unpacked. Both are set or none; they
  /// are used if the communicator is a DeviceExchange.
  std::function<std::vector<DeviceBox>(const Transfer& transfer)> sent_from{};
  std::function<std::vector<DeviceBox>(const Transfer& transfer)> received_into{};
};

/// Carries out a schedule. Collective, with schedules of the same messages on all ranks. If a step
/// throws on any rank, all ranks throw the same CheckpointError before the next round, or at the
/// end.
void run_exchange(const ExchangeSchedule& schedule, const ExchangeSteps& steps, Communicator& comm);

}  // namespace dckpt
