// Any bytes become a graph and a value, or a CheckpointError. Every value can be written at
// protocol 4 and reads back unchanged, and everything written at protocol 2 is sound.

#include <cstdlib>

#include "mapping/base/error.h"
#include "strategies/formats/pickle/value.h"

namespace {

using namespace dckpt;
using namespace dckpt::pickle;

// The limits are far below the real ones, so that inputs that reach them take no time. Written
// pickles may be slightly larger.
constexpr Limits kLimits{
    .max_nodes = 1 << 16, .max_bytes = 1 << 20, .max_depth = 100, .max_expanded = 1 << 12};
constexpr Limits kAgain{
    .max_nodes = 1 << 20, .max_bytes = 1 << 24, .max_depth = 200, .max_expanded = 1 << 16};

Value read(ByteView bytes, const Limits& limits) {
  ValueHooks hooks;
  hooks.persistent = [](const Value& id) { return Value::tuple({"persistent", id}); };
  return value_from_graph(read_graph(bytes, "input", limits), hooks, limits);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Value value;
  try {
    value = read(as_bytes({reinterpret_cast<const char*>(data), size}), kLimits);
  } catch (const CheckpointError&) {
    return 0;
  }
  const Bytes newer = write_pickle(value, {.protocol = 4});
  if (!(read(newer, kAgain) == value)) std::abort();
  Bytes older;
  try {
    older = write_pickle(value, {.protocol = 2});
  } catch (const CheckpointError&) {
    return 0;  // a name that protocol 2 cannot express
  }
  read_graph(older, "written", kAgain);
  return 0;
}
