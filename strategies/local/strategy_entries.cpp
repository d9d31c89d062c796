#include "strategies/local/strategy_entries.h"

#include <utility>

#include "strategies/local/local_reader.h"

namespace dckpt {

StrategyEntries local_strategies() {
  StrategyEntries entries;
  entries.load.push_back(
      {.name = "local",
       .about = "Megatron's local non-persistent checkpoints (RANK/iter_*_local.pt)",
       .matches = may_be_local_checkpoint,
       .holds = is_local_checkpoint,
       .holds_iterations = true,
       .open = [](std::shared_ptr<Storage> storage, const OpenHints& hints) {
         return open_local(std::move(storage), hints.iteration);
       }});
  return entries;
}

}  // namespace dckpt
