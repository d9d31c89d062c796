// The notes of a conversion. Records are read with correct checksums, and without.

#include <cstdint>

#include "mapping/base/error.h"
#include "operations/convert/workers/pool_notes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dckpt::ByteView input(reinterpret_cast<const std::byte*>(data), size);
  for (const dckpt::Bytes& bytes :
       {dckpt::to_bytes(dckpt::as_text(input)), dckpt::note_record(input)}) {
    dckpt::PoolNotes notes;
    try {
      dckpt::parse_notes(bytes, "notes", notes);
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
