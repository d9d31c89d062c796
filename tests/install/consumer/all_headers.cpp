// Public headers go together, and hide none of anybody else's.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/strategy.h>
#include <mapping/state/sharded_tree.h>

#if __has_include(<strategy.h>) || __has_include(<dist_checkpointing.h>)
#error "names in include/dckpt are found without the folder"
#endif
