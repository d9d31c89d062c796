// The messages between ranks and rank 0 in a load by a planner. Accepted messages survive another
// round trip.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "dist_checkpointing/load/load_plan_messages.h"
#include "mapping/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  LoadPlan plan;
  try {
    plan = decode_load_plan({reinterpret_cast<const std::byte*>(data), size});
  } catch (const CheckpointError&) {
    return 0;
  }
  const Bytes sent = encode(plan);
  if (encode(decode_load_plan(sent)) != sent) std::abort();
  return 0;
}
