#include "dckpt/cli.h"

int main(int argc, char** argv) {
  return dckpt::cli_main(argc, argv);
}
