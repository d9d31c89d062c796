// The journal of an interrupted conversion. Its lines are read with correct checksums, and without.

#include <cstdint>
#include <string>
#include <string_view>

#include "mapping/base/error.h"
#include "operations/convert/conversion_journal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& journal : {std::string(text), dckpt::journal_line(text)}) {
    try {
      dckpt::parse_journal(dckpt::as_bytes(journal), "journal");
    } catch (const dckpt::CheckpointError&) {
    }
  }
  return 0;
}
