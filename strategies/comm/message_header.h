#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "mapping/base/bytes.h"

namespace dckpt {

enum class Operation : std::uint32_t {
  kBarrier,
  kGather,
  kAllGather,
  kScatter,
  kBroadcast,
  kAllToAll,
  kAllReduce,
  kSplit,
  kFarewell  ///< no call: a Farewell
};

const char* name_of(Operation operation);

/// Goes ahead of every buffer: how long it is, in which call it was sent, and hashes by which a
/// network that changes or mixes up messages is noticed before they are acted upon. Short buffers
/// travel inside.
struct MessageHeader {
  static constexpr std::size_t kInlined = 224;

  Operation operation;
  std::uint32_t number;
  std::uint64_t size;
  std::uint64_t content;  ///< hash of a buffer that follows; 0: not checked
  std::uint64_t check;    ///< hash of the other fields and of the Way
  std::array<std::byte, kInlined> inlined;
};
static_assert(std::has_unique_object_representations_v<MessageHeader>);

/// Between which ranks of the job a message goes.
struct Way {
  int from = 0;
  int to = 0;
};

/// With `check`. `inlined`: at most kInlined bytes.
MessageHeader message_header(Way way, Operation operation, std::uint32_t number, std::uint64_t size,
                             std::uint64_t content, ByteView inlined = {}) noexcept;

/// Whether it arrived as it was sent, and where it was sent to.
bool is_sound(Way way, const MessageHeader& header) noexcept;

/// What a rank that takes no further part in collectives says to another.
struct Farewell {
  enum class Kind : std::uint32_t {
    kFailed,  ///< the sender's error
    kAsks,    ///< it has waited too long, and asks who is silent
    kSilent   ///< the ranks that are; empty: none
  };
  Kind kind;
  std::string text;
};

/// As much of the text as fits; for every rank.
MessageHeader header_of(const Farewell& farewell) noexcept;

/// The farewell with which a message begins, if any.
std::optional<Farewell> farewell_in(ByteView message);

}  // namespace dckpt
