#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "strategies/formats/json/json.h"

/// Reads bytes as JSON; accepted values must survive writing and reading.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  Value value;
  try {
    value = parse_json({reinterpret_cast<const std::byte*>(data), size}, "fuzz",
                       {.max_bytes = 1 << 20, .max_depth = 100});
  } catch (const CheckpointError&) {
    return 0;
  }
  for (const int indent : {0, 2}) {
    if (!(parse_json(as_bytes(to_json(value, indent)), "again") == value)) std::abort();
  }
  return 0;
}
