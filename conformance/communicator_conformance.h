#pragma once

#include "conformance/report.h"
#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Checks that a communicator conforms, for use in your own tests. Every rank calls it with its
/// communicator of at least two ranks and gets the problems found there, as lines that start with
/// its rank.
///
///   EXPECT_THAT(check_communicator(comm).problems, IsEmpty());   // on every rank
///
/// Covers all operations with buffers of different lengths (empty ones, and ones of megabytes),
/// every root, groups of several ranks and of one, hundreds of operations in sequence, and the
/// refusal of a root outside the group. Does not cover timeouts, which end the communicator. After
/// a problem the ranks may be out of step, so the remaining checks are skipped. Takes a second, and
/// 20 MiB per rank.
ConformanceReport check_communicator(Communicator& comm);

}  // namespace dckpt
