#pragma once

#include <string>

#include "group.h"

namespace gpt {

/// The numbers of parts into which the model's matrices (tp), its layers (pp) and the batch (dp)
/// are cut.
struct Layout {
  int tp = 1, pp = 1, dp = 1;
};

/// Returns "TP2·PP1·DP2".
std::string to_string(const Layout& layout);

/// This process's place in the layout, and the groups that it communicates with. Ranks are in
/// Megatron's order: rank = tp_rank + TP · (dp_rank + DP · pp_rank).
struct ParallelState {
  Layout layout;
  int rank = 0;
  int tp_rank = 0, dp_rank = 0, pp_rank = 0;
  Group world;   ///< all processes; pipeline stages communicate over it
  Group tensor;  ///< ranks with other pieces of the same layers
  Group data;    ///< ranks with the same pieces and other parts of the batch

  bool is_first_stage() const { return pp_rank == 0; }
  bool is_last_stage() const { return pp_rank == layout.pp - 1; }
  int previous_stage() const { return rank - layout.tp * layout.dp; }  ///< rank in `world`
  int next_stage() const { return rank + layout.tp * layout.dp; }
};

/// Connects the processes that torchrun or ./run has started, by RANK, WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT. Collective. The data parallel size is the number of processes divided by tp and pp.
/// Throws std::invalid_argument if that is not a whole number or a variable is missing.
ParallelState connect(int tp, int pp);

}  // namespace gpt
