// Public headers go together, hide none of anybody else's, and nothing else is found.
#include "every_header.h"

#if __has_include(<strategy.h>) || __has_include(<mapping/state/value.h>)
#error "more than the folder dckpt is on the include path"
#endif

static_assert(DCKPT_VERSION_MAJOR * 100 + DCKPT_VERSION_MINOR > 0);
