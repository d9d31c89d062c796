// docs_snippets NAME: runs a C++ block of the documentation. The exit code is 77 if the block needs
// libtorch and this program is built without it.

#include "snippets_main.h"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: docs_snippets NAME\n"), 2;
  std::map<std::string, void (*)()> all = core_snippets();
#ifdef DCKPT_DOCS_TORCH
  all.merge(torch_snippets());
  constexpr int kNotFound = 1;
#else
  constexpr int kNotFound = 77;
#endif
  const auto found = all.find(argv[1]);
  if (found == all.end())
    return std::fprintf(stderr, "not in docs_snippets; build it anew\n"), kNotFound;
  try {
    found->second();
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
