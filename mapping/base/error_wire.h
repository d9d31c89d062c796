#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/wire.h"

namespace dckpt {

// The wire format of an error between ranks: code, then message, key, file (1 and the text; 0 if
// there is none), offset + 1, rank + 1 (0 if unknown). The cause stays behind.

/// Writes at most `longest` bytes of each text.
void write_to(WireWriter& writer, const CheckpointError& error,
              std::size_t longest = std::string::npos);
/// Throws CheckpointError (corrupt). An unknown code of another build becomes (internal).
CheckpointError read_error(WireReader& reader);
void read_from(WireReader& reader, std::vector<CheckpointError>& errors);

}  // namespace dckpt
