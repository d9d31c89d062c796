#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/pitched_rows.h"
#include "mapping/state/tensor.h"
#include "strategies/comm/point_to_point.h"

namespace DCKPT_API dckpt {

/// A box of a tensor in memory of a device; its bytes are those of the elements in row-major order.
struct DeviceBox {
  std::byte* tensor = nullptr;  ///< element 0
  std::size_t item_size = 1;
  Shape sizes;
  StridedView view;  ///< in elements
};

/// A stretch of a message.
struct MessagePart {
  std::uint64_t bytes = 0;
  std::byte* host = nullptr;  ///< where it is, or goes to, in host memory; unless there are boxes
  /// On the device, each with all of its bytes: one that it is sent from, or any number that
  /// receive it.
  std::vector<DeviceBox> boxes{};
};

std::uint64_t length_of(std::span<const MessagePart> parts) noexcept;

/// Calls visit(part, begin, length, at) for what the parts have of the bytes [offset, offset +
/// length) of their message: `begin` in the part, `at` from `offset`.
template <typename Visit>
void for_each_stretch(std::span<const MessagePart> parts, std::uint64_t offset,
                      std::uint64_t length, Visit&& visit) {
  std::uint64_t first = 0;
  for (const MessagePart& part : parts) {
    const std::uint64_t begin = std::max(first, offset);
    const std::uint64_t end = std::min(first + part.bytes, offset + length);
    if (begin < end) visit(part, begin - first, end - begin, begin - offset);
    first += part.bytes;
  }
}

/// Calls visit(rows) for the bytes [begin, begin + length) of a box. Rows count bytes: their source
/// from the tensor's element 0, their destination from the first of these bytes.
void for_each_rows(const DeviceBox& box, std::uint64_t begin, std::uint64_t length,
                   const std::function<void(const PitchedRows& rows)>& visit);

/// A Transport whose messages pass through memory of a device, so that tensors there are sent from
/// where they are and received where they belong. Which of the two kinds of calls a rank makes
/// does not matter to the other side.
class DeviceBoxTransport : public Transport {
 public:
  struct Message {
    int peer;
    std::span<const MessagePart> parts;
  };

  virtual Device device() const noexcept = 0;

  using Transport::exchange;
  /// As the other one. What filled the boxes, and what still uses those that receive, must have
  /// ended.
  virtual void exchange(std::span<const Message> outgoing, std::span<const Message> incoming,
                        const Deadline& deadline) = 0;
};

/// What a Communicator over a DeviceBoxTransport is besides; whoever can profit asks by
/// dynamic_cast.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  /// Where the boxes of messages are.
  virtual Device device() const noexcept = 0;

  /// Like Communicator::all_to_all(), which other ranks may call instead: outgoing[r] goes to rank
  /// r, and what rank r sends here goes to incoming[r]. Those of this rank are ignored. Boxes as
  /// for DeviceBoxTransport::exchange(); what has been received is in place when it returns. Throws
  /// CheckpointError as all_to_all() does, and (corrupt) if a rank sends another number of bytes
  /// than its incoming message has.
  virtual void all_to_all(std::span<const std::vector<MessagePart>> outgoing,
                          std::span<const std::vector<MessagePart>> incoming) = 0;
};

}  // namespace dckpt
