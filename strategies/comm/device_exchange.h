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

/// A box of a tensor in device memory. Its bytes are those of the elements in row-major order.
struct DeviceBox {
  std::byte* tensor = nullptr;  ///< element 0
  std::size_t item_size = 1;
  Shape sizes;
  StridedView view;  ///< offset and strides in elements
};

/// A part of a message.
struct MessagePart {
  std::uint64_t bytes = 0;
  std::byte* host = nullptr;  ///< source or destination in host memory, if there are no boxes
  /// Boxes on the device, each with all bytes of the part: the one it is sent from, or any number
  /// that receive it.
  std::vector<DeviceBox> boxes{};
};

std::uint64_t length_of(std::span<const MessagePart> parts) noexcept;

/// Calls visit(part, begin, length, at) for the stretches of the parts that overlap the bytes
/// [offset, offset + length) of their message. `begin` is relative to the part, `at` to `offset`.
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

/// A Transport whose messages pass through device memory, so that tensors there are sent from and
/// received in place. A rank may make either kind of call, whichever the other side makes.
class DeviceBoxTransport : public Transport {
 public:
  struct Message {
    int peer;
    std::span<const MessagePart> parts;
  };

  virtual Device device() const noexcept = 0;

  using Transport::exchange;
  /// Like Transport::exchange(). All work that fills the boxes to send or uses those that receive
  /// must have ended.
  virtual void exchange(std::span<const Message> outgoing, std::span<const Message> incoming,
                        const Deadline& deadline) = 0;
};

/// An additional interface of a Communicator over a DeviceBoxTransport; callers that can profit ask
/// for it by dynamic_cast.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  /// Returns the device of the messages' boxes.
  virtual Device device() const noexcept = 0;

  /// Like Communicator::all_to_all(), which other ranks may call instead: outgoing[r] goes to rank
  /// r, and incoming[r] receives what rank r sends here. Those of this rank are ignored. Boxes are
  /// as for DeviceBoxTransport::exchange(). Received data is in place when it returns. Throws
  /// CheckpointError as all_to_all() does, and (corrupt) if a rank sends another number of bytes
  /// than its incoming message has.
  virtual void all_to_all(std::span<const std::vector<MessagePart>> outgoing,
                          std::span<const std::vector<MessagePart>> incoming) = 0;
};

}  // namespace dckpt
