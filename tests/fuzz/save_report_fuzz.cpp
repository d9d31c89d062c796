// dckpt_report.json. Accepted reports survive writing and reading.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  SaveReport report;
  try {
    report = read_report({reinterpret_cast<const std::byte*>(data), size});
  } catch (const CheckpointError&) {
    return 0;
  }
  if (!(read_report(as_bytes(to_json(report))) == report)) std::abort();
  to_string(report);
  return 0;
}
