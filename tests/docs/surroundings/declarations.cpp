// Declarations, compiled only.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/operations.h>
#include <dckpt/transfer.h>

namespace SNIPPET_scope {
BLOCK
}

void SNIPPET() {}
