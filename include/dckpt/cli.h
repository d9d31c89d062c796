#pragma once

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The command line tool as a function: what `dckpt` does with these arguments, and its exit code.
/// A program that registers strategies first has all commands for its own formats, and `config
/// check` knows them. Call it once, from main(): it ignores SIGPIPE from then on. Link dckpt::cli.
int cli_main(int argc, char** argv);

}  // namespace dckpt
