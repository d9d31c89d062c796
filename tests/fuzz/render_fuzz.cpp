// Any content of a pickle can be shown: its rendering is JSON, which reads back as the same value,
// and a comparison with itself finds no difference.

#include <cstdlib>

#include "mapping/base/error.h"
#include "operations/inspect/compare_values.h"
#include "operations/inspect/extract/render.h"
#include "strategies/formats/json/json.h"
#include "strategies/formats/pickle/value.h"

namespace {

using namespace dckpt;

// The limits are far below the real ones, so that inputs that reach them take no time.
constexpr pickle::Limits kLimits{
    .max_nodes = 1 << 16, .max_bytes = 1 << 20, .max_depth = 100, .max_expanded = 1 << 12};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Value rendered;
  try {
    rendered = render(pickle::value_from_graph(
        pickle::read_graph(as_bytes({reinterpret_cast<const char*>(data), size}), "input", kLimits),
        {}, kLimits));
  } catch (const CheckpointError&) {
    return 0;
  }
  const std::string text = to_json(rendered);
  for (const char c : text) {
    if (c < 0x20 || c > 0x7E) std::abort();
  }
  if (!compare_values(rendered, rendered, Tolerance{}, 10).empty()) std::abort();
  try {
    parse_json(as_bytes(text), "rendering", {.max_depth = 1000});
  } catch (const CheckpointError&) {
    if (text.find("\\ud") == std::string::npos)
      std::abort();  // only lone surrogates, which JSON can spell but parse_json refuses
  }
  return 0;
}
