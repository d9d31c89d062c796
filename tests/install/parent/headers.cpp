// Users of a subproject find <dckpt/…> and no other headers, like users of an installation.
#include <dckpt/dist_checkpointing.h>

#if __has_include(<strategy.h>) || __has_include(<mapping/base/error.h>)
#error "more than the folder dckpt is on the include path"
#endif

int main() {
  return 0;
}
