#include "strategies/comm/sockets/handshake.h"

#include <algorithm>
#include <string_view>

#include "mapping/base/error_wire.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"

namespace dckpt::sockets {
namespace {

// The last two characters are the version of the protocol.
constexpr std::string_view kHelloMagic = "dckpt-hello-01";
constexpr std::string_view kAnswerMagic = "dckpt-answer-01";
constexpr std::string_view kGreetingMagic = "dckpt-01";
constexpr std::size_t kVersionDigits = 2;
constexpr std::size_t kMostRefusal = 4096;

bool starts_with(ByteView bytes, std::string_view text) {
  return as_text(bytes).starts_with(text);
}

/// Returns the digits of the version that stands where `magic` has its own.
std::string version_in(ByteView bytes, std::string_view magic) {
  return printable(as_text(bytes).substr(magic.size() - kVersionDigits, kVersionDigits));
}

[[noreturn]] void throw_no_answer() {
  throw_error(ErrorCode::kCorrupt,
              "what answers there is not rank 0 of a job of this version of dckpt");
}

}  // namespace

std::size_t frame_length(ByteView head) {
  return load_le<std::uint32_t>(head, 0);
}

Bytes framed(Bytes bytes) {
  Bytes frame;
  frame.reserve(kFrameLength + bytes.size());
  append_le(frame, static_cast<std::uint32_t>(bytes.size()));
  frame.insert(frame.end(), bytes.begin(), bytes.end());
  return frame;
}

Bytes encode(const Hello& hello) {
  Bytes bytes = to_bytes(kHelloMagic);
  WireWriter writer(bytes);
  writer.text(hello.token);
  writer.number(static_cast<std::uint64_t>(hello.rank));
  writer.number(static_cast<std::uint64_t>(hello.size));
  writer.text(hello.address);
  return bytes;
}

std::optional<Hello> decode_hello(ByteView bytes) {
  const std::string_view name = kHelloMagic.substr(0, kHelloMagic.size() - kVersionDigits);
  if (bytes.size() < kHelloMagic.size() || !starts_with(bytes, name)) return std::nullopt;
  if (!starts_with(bytes, kHelloMagic)) {
    throw_error(ErrorCode::kUnsupported,
                "a rank speaks version {} of the protocol, this one {}; run "
                "the same build of dckpt on all ranks",
                version_in(bytes, kHelloMagic),
                kHelloMagic.substr(kHelloMagic.size() - kVersionDigits));
  }
  try {
    WireReader reader(bytes.subspan(kHelloMagic.size()), "hello");
    Hello hello;
    hello.token = reader.text();
    hello.rank = static_cast<std::int32_t>(reader.number(kMostRanks));
    hello.size = static_cast<std::int32_t>(reader.number(kMostRanks));
    hello.address = reader.text();
    reader.finish();
    if (hello.token.size() > kMostToken || hello.address.size() > kMostAddress) return std::nullopt;
    return hello;
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

std::optional<std::string> token_in(ByteView hello) {
  if (hello.size() < kHelloMagic.size()) return std::nullopt;
  try {
    return WireReader(hello.subspan(kHelloMagic.size()), "hello").text();
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
}

Bytes encode(const Answer& answer) {
  Bytes bytes = to_bytes(kAnswerMagic);
  WireWriter writer(bytes);
  writer.number(answer.refusal ? 1 : 0);
  if (answer.refusal) {
    write_to(writer, *answer.refusal, kMostRefusal);
    return bytes;
  }
  bytes.insert(bytes.end(), answer.key.begin(), answer.key.end());
  for (const std::string& address : answer.addresses) writer.text(address);
  return bytes;
}

std::size_t most_answer(int size) noexcept {
  return kAnswerMagic.size() + 16 + 4 * kMostRefusal +
         static_cast<std::size_t>(size) * (kMostAddress + 2);
}

Answer decode_answer(ByteView bytes, int size) {
  if (!starts_with(bytes, kAnswerMagic)) throw_no_answer();
  WireReader reader(bytes.subspan(kAnswerMagic.size()), "answer of rank 0");
  Answer answer;
  if (reader.number(1) == 1) {
    answer.refusal = read_error(reader);
    reader.finish();
    return answer;
  }
  ByteView rest = reader.rest();
  if (rest.size() < answer.key.size()) throw_no_answer();
  std::ranges::copy(rest.first(answer.key.size()), answer.key.begin());
  WireReader list(rest.subspan(answer.key.size()), "addresses of ranks");
  for (int rank = 0; rank < size; ++rank) {
    answer.addresses.push_back(list.text());
    if (answer.addresses.back().size() > kMostAddress) throw_no_answer();
  }
  list.finish();
  return answer;
}

std::array<std::byte, kGreetingBytes> encode(const Greeting& greeting) {
  Bytes bytes = to_bytes(kGreetingMagic);
  bytes.insert(bytes.end(), greeting.key.begin(), greeting.key.end());
  append_le(bytes, greeting.from);
  append_le(bytes, greeting.to);
  std::array<std::byte, kGreetingBytes> all{};
  std::ranges::copy(bytes, all.begin());
  return all;
}

std::optional<Greeting> decode_greeting(ByteView bytes) {
  if (bytes.size() != kGreetingBytes || !starts_with(bytes, kGreetingMagic)) return std::nullopt;
  Greeting greeting;
  const ByteView rest = bytes.subspan(kGreetingMagic.size());
  std::ranges::copy(rest.first(greeting.key.size()), greeting.key.begin());
  greeting.from = load_le<std::int32_t>(rest, greeting.key.size());
  greeting.to = load_le<std::int32_t>(rest, greeting.key.size() + sizeof(std::int32_t));
  return greeting;
}

}  // namespace dckpt::sockets
