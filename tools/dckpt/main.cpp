#include <algorithm>
#include <string_view>

#include "dckpt/cli.h"
#include "tools/dckpt/launch.h"

namespace {

/// Workers of a pool find each other in its folder, however they were started.
bool works_in_pool(int argc, char** argv) {
  return std::any_of(argv, argv + argc, [](std::string_view word) {
    return word == "--workers" || word.starts_with("--workers=");
  });
}

}  // namespace

int main(int argc, char** argv) {
  const auto launch = dckpt::tool::find_launch();
  if (launch && !works_in_pool(argc, argv)) return dckpt::tool::become_rank(*launch, argv);
  return dckpt::cli_main(argc, argv);
}
