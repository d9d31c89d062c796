// The notes of a conversion. Their lines are read with correct checksums, and without.

#include <cstdint>
#include <string>
#include <string_view>

#include "mapping/base/error.h"
#include "operations/convert/workers/pool_notes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& lines : {std::string(text), dckpt::note_line(text)}) {
    dckpt::PoolNotes notes;
    try {
      dckpt::parse_notes(lines, "notes", notes);
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
