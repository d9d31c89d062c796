#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"

// The handshakes between sockets of ranks, as pure functions over bytes. They precede the first
// message.
//
//   hello      A rank tells rank 0, at the rendezvous, its rank and the address at which it listens.
//   answer     Rank 0 replies with the addresses of all ranks and the key of the job, or an error.
//   greeting   A rank names itself to another one, on the connection that will carry their messages.
//
// Hellos and answers are preceded by their length (32 bits, little-endian). Strangers may send
// anything: lengths are limited, and bytes that are not a hello are ignored, not an error.
namespace dckpt::sockets {

constexpr std::size_t kFrameLength = 4;
constexpr std::size_t kMostHello = 1024;  ///< bytes of a hello without its length
constexpr std::size_t kMostToken = 256;
constexpr std::size_t kMostAddress = 128;
constexpr int kMostRanks = 1 << 20;
/// A rank speaks as soon as it is connected; who does not is a stranger, and the first of too many
/// strangers are dropped.
constexpr std::chrono::milliseconds kMostSilence{10'000};
constexpr std::size_t kMostStrangers = 256;

/// A random number that only the ranks of one job know, so that no stranger is taken for a rank.
using JobKey = std::array<std::byte, 16>;

struct Hello {
  std::string token{};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::string address{};  ///< the address at which the rank listens

  friend bool operator==(const Hello&, const Hello&) = default;
};

/// Answers of rank 0.
struct Answer {
  std::optional<CheckpointError> refusal{};  ///< if set, the rest is empty
  JobKey key{};
  std::vector<std::string> addresses{};  ///< indexed by rank
};

struct Greeting {
  JobKey key{};
  std::int32_t from = 0;
  std::int32_t to = 0;

  friend bool operator==(const Greeting&, const Greeting&) = default;
};
constexpr std::size_t kGreetingBytes = 32;

/// Returns the length of the frame that begins with these 4 bytes.
std::size_t frame_length(ByteView head);
/// Returns the bytes with their length before them.
Bytes framed(Bytes bytes);

Bytes encode(const Hello& hello);
/// Returns an empty result for bytes that no rank of any version sends. Throws CheckpointError
/// (unsupported) for a hello of another version.
std::optional<Hello> decode_hello(ByteView bytes);
/// Returns the token in a hello, which stands at the same place in all versions.
std::optional<std::string> token_in(ByteView hello);

Bytes encode(const Answer& answer);
/// Throws CheckpointError (corrupt) for what rank 0 does not send to a job of `size` ranks.
Answer decode_answer(ByteView bytes, int size);
/// Returns the most bytes that an answer to `size` ranks has.
std::size_t most_answer(int size) noexcept;

std::array<std::byte, kGreetingBytes> encode(const Greeting& greeting);
/// Returns an empty result for bytes that no rank sends.
std::optional<Greeting> decode_greeting(ByteView bytes);

}  // namespace dckpt::sockets
