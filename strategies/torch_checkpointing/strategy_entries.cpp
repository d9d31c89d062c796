#include "strategies/torch_checkpointing/strategy_entries.h"

#include <utility>

#include "strategies/torch_checkpointing/reader.h"

namespace dckpt {

StrategyEntries torch_checkpointing_strategies() {
  StrategyEntries entries;
  entries.load.push_back(
      {.name = "torch_checkpointing",
       .about = "torch_checkpointing directories (metadata.pkl, one file per item and "
                "rank)",
       .capabilities = {.common_state = false},
       .matches = is_torch_checkpointing,
       .open = [](std::shared_ptr<Storage> storage, const OpenHints&) {
         return open_torch_checkpointing(std::move(storage));
       }});
  return entries;
}

}  // namespace dckpt
