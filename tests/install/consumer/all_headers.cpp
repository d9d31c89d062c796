// Public headers compile together, hide no other headers, and no others are found.
#include "every_header.h"

#if __has_include(<strategy.h>) || __has_include(<mapping/state/value.h>)
#error "more than the folder dckpt is on the include path"
#endif

static_assert(DCKPT_VERSION_MAJOR * 100 + DCKPT_VERSION_MINOR > 0);
