#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Sets whether loads may copy short runs of elements, which lie apart, out of mapped files; they
/// may by default. The first load that does so installs a handler of SIGBUS for the process,
/// because a mapped file that another process truncates raises that signal. For these copies alone
/// the handler turns it into an error of the load; every other SIGBUS goes to the handler that was
/// installed before. A program that wants no handler of a library turns mapped reads off before its
/// first load: each run is then a request of its own, and no signal handler is touched. Turning
/// them off later leaves an installed handler in place, since others may have chained to it. Safe
/// to call from any thread.
void allow_mapped_reads(bool allowed) noexcept;
bool mapped_reads_allowed() noexcept;

}  // namespace dckpt
