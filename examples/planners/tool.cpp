// The command-line tool with custom planners: `config check` knows them and their options.

#include <dckpt/cli.h>

#include "encryption.h"
#include "load_planners.h"
#include "planners.h"

int main(int argc, char** argv) {
  example::register_planners();
  example::register_load_planners();
  example::register_encryption();
  return dckpt::cli_main(argc, argv);
}
