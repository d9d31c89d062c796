// A trainer that has tensors of another library with DLPack support; compiled only.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/dlpack.h>

namespace {
[[maybe_unused]] void SNIPPET_saves(DLManagedTensorVersioned* exported) {
  dckpt::StateDict state;
BLOCK
  dckpt::save(state, "SNIPPET");
}
}  // namespace

void SNIPPET() {}
