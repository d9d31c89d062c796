// The command-line tool with a custom backend: all its commands read `raw` checkpoints, and `config
// check` knows the strategy and its options.

#include <dckpt/cli.h>

#include "raw_strategy.h"
#include "unprefixed.h"

int main(int argc, char** argv) {
  raw::register_strategy();
  raw::register_unprefixed();
  return dckpt::cli_main(argc, argv);
}
