// Declarations, compiled only.
#include <dckpt/dist_checkpointing.h>

namespace SNIPPET_scope {
BLOCK
}

void SNIPPET() {}
