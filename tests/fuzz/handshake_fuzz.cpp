// Strangers send hellos, greetings and answers to the sockets of ranks.
#include <cstddef>
#include <cstdint>

#include "strategies/comm/sockets/handshake.h"
#include "tests/fuzz/input_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dckpt::ByteView bytes{reinterpret_cast<const std::byte*>(data), size};
  try {
    if (const auto hello = dckpt::sockets::decode_hello(bytes)) {
      if (dckpt::sockets::decode_hello(dckpt::sockets::encode(*hello)) != hello) __builtin_trap();
    }
  } catch (const dckpt::CheckpointError&) {
  }
  (void)dckpt::sockets::decode_greeting(bytes);
  (void)dckpt::sockets::token_in(bytes);
  for (const int ranks : {1, 2, 1000}) {
    try {
      (void)dckpt::sockets::decode_answer(bytes, ranks);
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
