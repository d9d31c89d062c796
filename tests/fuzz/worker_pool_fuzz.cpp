// The files in the directory of a pool of workers: the job, and what is known of its first unit.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "mapping/base/error.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/storage/memory.h"

namespace {

constexpr std::string_view kJob =
    R"({"destination": "out", "staging": ".out.saving-workers-1", "facts": [], "units": [["a", 1]]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const dckpt::Bytes input = dckpt::to_bytes(text);
  const std::string note = dckpt::note_line(text);
  for (const char* const name : {"job.json", ".notes-a-1", "0.claim-1", "publish.claim-1"}) {
    const auto pool = dckpt::memory_storage();
    pool->put("job.json", dckpt::as_bytes(kJob));
    pool->put(name, dckpt::is_notes(name) ? dckpt::as_bytes(note) : dckpt::ByteView(input));
    try {
      static_cast<void>(dckpt::survey_workers(dckpt::Location(pool)));
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
