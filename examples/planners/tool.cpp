// The command line tool with a backend of one's own: all its commands read `raw` checkpoints, and
// `config check` knows the strategy and its options.

#include <dckpt/cli.h>

#include "planners.h"

int main(int argc, char** argv) {
  example::register_planners();
  return dckpt::cli_main(argc, argv);
}
