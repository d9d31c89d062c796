#pragma once

#include "dist_checkpointing/conformance/strategy_conformance.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Runs everything that a communicator must get right, for a test of one's own. Every rank calls it
/// with its communicator, of two ranks or more, and gets what is wrong there: lines that begin with
/// its rank.
///
///   EXPECT_THAT(check_communicator(comm).problems, IsEmpty());   // on every rank
///
/// Checked are all operations with buffers of different lengths, empty ones and ones of megabytes,
/// every root, groups of ranks and groups of one, hundreds of operations in step, and that a root
/// outside the group is refused. A time-out is not: it ends the communicator. After a problem the
/// ranks may be out of step; then the rest is left out. Takes a second, and 20 MiB per rank.
ConformanceReport check_communicator(Communicator& comm);

}  // namespace dckpt
