#pragma once

#include <string>

#include "group.h"

namespace gpt {

/// How many ways the model's matrices (tp), its layers (pp) and the batch (dp) are cut.
struct Layout {
  int tp = 1, pp = 1, dp = 1;
};

/// "TP2·PP1·DP2"
std::string to_string(const Layout& layout);

/// This process's place in the layout, and those it talks to. In Megatron's order of ranks: rank =
/// tp_rank + TP · (dp_rank + DP · pp_rank).
struct ParallelState {
  Layout layout;
  int rank = 0;
  int tp_rank = 0, dp_rank = 0, pp_rank = 0;
  Group world;   ///< all processes; stages of a pipeline talk over it
  Group tensor;  ///< those that hold other pieces of the same layers
  Group data;    ///< those that hold the same pieces and see other parts of the batch

  bool is_first_stage() const { return pp_rank == 0; }
  bool is_last_stage() const { return pp_rank == layout.pp - 1; }
  int previous_stage() const { return rank - layout.tp * layout.dp; }  ///< rank in `world`
  int next_stage() const { return rank + layout.tp * layout.dp; }
};

/// Connects the processes that torchrun or ./run has started, by RANK, WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT. Collective. The data parallel size is what remains of the number of processes.
/// Throws std::invalid_argument if they cannot be cut like that or a variable is missing.
ParallelState connect(int tp, int pp);

}  // namespace gpt
