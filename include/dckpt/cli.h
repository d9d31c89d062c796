#pragma once

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Runs the command line tool with these arguments and returns its exit code. A program that
/// registers strategies first has all commands for its own formats, and `config check` knows them.
/// The tool reads and writes the process's standard streams. While it runs, SIGPIPE and SIGXFSZ are
/// ignored, convert and remove wait for SIGINT, SIGTERM and SIGHUP, and the library's messages are
/// printed unless the program has a sink for them; afterwards everything is as before. Make one
/// call at a time. Link dckpt::cli.
int cli_main(int argc, char** argv);

/// Runs it as one of the ranks of a job, which have the same arguments: verify, digest, stats and
/// diff share the work, other commands that only read run on rank 0, and the rest are refused. Only
/// rank 0 prints, and all return its exit code. Collective. Throws CheckpointError if the ranks
/// have lost each other, so that rank 0 may not have printed why.
int cli_main(int argc, char** argv, Communicator& ranks);

}  // namespace dckpt
