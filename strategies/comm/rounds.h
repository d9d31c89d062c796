#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/comm/point_to_point.h"

namespace DCKPT_API dckpt {

/// A part of a message that travels in one round.
struct TransferPiece {
  std::size_t message;
  std::size_t offset;
  std::size_t length;
  std::size_t place;  ///< offset in the staging buffer; a multiple of kPieceAlignment
};

constexpr std::size_t kPieceAlignment = 256;

/// Cuts messages of these lengths into pieces of at most `longest` bytes, and assigns the pieces to
/// rounds of at most `room` bytes (at least `longest`, both multiples of the alignment). A round
/// has at most one piece of a message, and the k-th piece of a message comes after the earlier
/// pieces of all messages. Sender and receiver, whose other messages differ, thus agree on the
/// pieces and their order.
std::vector<std::vector<TransferPiece>> plan_rounds(std::span<const std::size_t> lengths,
                                                    std::size_t longest, std::size_t room);

/// The part of an exchange that travels at once, through a staging buffer for each direction.
struct Round {
  std::vector<TransferPiece> outgoing;
  std::vector<TransferPiece> incoming;
  std::vector<int> peers;  ///< ascending
};

/// The length of a message to or from a rank.
struct MessageSize {
  int peer;
  std::size_t bytes;
};

std::vector<Round> plan_exchange(std::span<const MessageSize> outgoing,
                                 std::span<const MessageSize> incoming, std::size_t longest,
                                 std::size_t room);
std::vector<Round> plan_exchange(std::span<const Transport::Outgoing> outgoing,
                                 std::span<const Transport::Incoming> incoming, std::size_t longest,
                                 std::size_t room);

}  // namespace dckpt
