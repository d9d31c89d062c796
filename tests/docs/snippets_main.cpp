// docs_snippets NAME: runs a C++ block of the documentation. Exit code 77 if this program does not have it (blocks with torch tensors, where there is no libtorch).

#include "snippets_main.h"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: docs_snippets NAME\n"), 2;
  std::map<std::string, void (*)()> all = core_snippets();
#ifdef DCKPT_DOCS_TORCH
  all.merge(torch_snippets());
#endif
  const auto found = all.find(argv[1]);
  if (found == all.end()) return 77;
  try {
    found->second();
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
