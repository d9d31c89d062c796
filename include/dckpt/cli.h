#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Runs the command line tool with these arguments and returns its exit code. A program that
/// registers strategies first has all commands for its own formats, and `config check` knows them.
/// The tool reads and writes the process's standard streams. While it runs, SIGPIPE and SIGXFSZ are
/// ignored, convert and remove wait for SIGINT, SIGTERM and SIGHUP, and the library's messages are
/// printed unless the program has a sink for them; afterwards everything is as before. Make one
/// call at a time. Link dckpt::cli.
int cli_main(int argc, char** argv);

}  // namespace dckpt
