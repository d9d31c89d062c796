// The files in the directory of a pool of workers: the job, and what is known of its first unit.

#include <cstdint>

#include "mapping/base/error.h"
#include "mapping/base/wire_fields.h"
#include "operations/convert/workers/worker_pool.h"
#include "operations/convert/workers/worker_survey.h"
#include "strategies/storage/memory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dckpt::ByteView input(reinterpret_cast<const std::byte*>(data), size);
  const dckpt::PooledJob job{
      .facts = {}, .destination = "out", .staging = ".out.saving-workers-1", .units = {{"a", 1}}};
  const dckpt::Bytes note = dckpt::note_record(input);
  for (const char* const name : {"job", ".notes-a-1", "0.claim-1", "publish.claim-1"}) {
    const auto pool = dckpt::memory_storage();
    pool->put("job", dckpt::message_of(job));
    pool->put(name, dckpt::is_notes(name) ? dckpt::ByteView(note) : input);
    try {
      static_cast<void>(dckpt::survey_workers(dckpt::Location(pool)));
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
