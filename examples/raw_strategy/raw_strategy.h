#pragma once

namespace raw {

/// Registers strategy `raw`, version 1, for saving and for loading: the elements of each rank in
/// one file, `rank_N.bin`, and an index. Nothing else reads such checkpoints; they show what a
/// backend of one's own takes. Its option `alignment` (a size, 64B unless said otherwise) is that
/// of every tensor in the file.
void register_strategy();

}  // namespace raw
