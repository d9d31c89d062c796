#pragma once

#include "mapping/base/finding.h"
#include "operations/convert/convert_options.h"
#include "operations/convert/write_copy.h"

namespace dckpt {

/// Carries a conversion out: continues what an interrupted one has left, works in a pool, or writes
/// the copy alone; a dry run checks what can be checked without writing. Returns the findings of
/// writing. Throws CheckpointError as write_copy() and share_copy() do, as find_interrupted(), and
/// (mismatch) for findings that ConvertChecks::error_on names.
Findings carry_out(const CopyJob& job, ConvertReport& report);

}  // namespace dckpt
