#pragma once

#include "operations/convert/convert_options.h"

namespace dckpt::tool {

/// Prints the report of a conversion: as a list of its steps if `explain`, and with the bytes that
/// each rank holds if tensors were `cut_for_ranks`.
void print_report(const ConvertReport& report, bool dry_run, bool explain, bool cut_for_ranks);

}  // namespace dckpt::tool
