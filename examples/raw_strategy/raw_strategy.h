#pragma once

namespace raw {

/// Registers strategy `raw`, version 1, for saving and for loading: the elements of each rank in
/// one file, `rank_N.bin`, and an index. No other program reads such checkpoints; they show what a
/// custom backend takes. The option `alignment` (a size, 64B by default) is the alignment of every
/// tensor in the file.
void register_strategy();

}  // namespace raw
