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
  kFarewell  ///< not a call, but a Farewell
};

const char* name_of(Operation operation);

/// Precedes every buffer: its length, the call in which it was sent, and hashes that detect a
/// network that changes or mixes up messages before they are acted upon. Short buffers travel
/// inside.
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

/// The sender and the receiver of a message, as ranks of the job.
struct Way {
  int from = 0;
  int to = 0;
};

/// Returns a header with its `check`. `inlined` has at most kInlined bytes.
MessageHeader message_header(Way way, Operation operation, std::uint32_t number, std::uint64_t size,
                             std::uint64_t content, ByteView inlined = {}) noexcept;

/// Returns whether the header arrived unchanged, and at the rank that it was sent to.
bool is_sound(Way way, const MessageHeader& header) noexcept;

/// A message of a rank that takes no further part in collectives.
struct Farewell {
  enum class Kind : std::uint32_t {
    kFailed,  ///< the sender's error
    kAsks,    ///< the sender has waited too long and asks who is silent
    kSilent   ///< the silent ranks; empty: none
  };
  Kind kind;
  std::string text;
  /// kFailed: the rank of the job whose error it is, whoever passes it on; -1: the sender.
  int origin = -1;
};

/// Returns a header for any rank, with as much of the text as fits.
MessageHeader header_of(const Farewell& farewell) noexcept;

/// Returns the farewell with which a message begins, if any.
std::optional<Farewell> farewell_in(ByteView message);

}  // namespace dckpt
