#include "strategies/zarr/strategy_entries.h"

#include <utility>

#include "strategies/zarr/writer.h"
#include "strategies/zarr/zarr_reader.h"

namespace dckpt {

StrategyEntries zarr_strategies() {
  StrategyEntries entries;
  entries.save.push_back({.name = "zarr",
                          .version = 1,
                          .about = "Megatron-Core's zarr backend (up to 0.15)",
                          .capabilities = {.equal_chunks = true, .integrity = true, .resume = true},
                          .conventions = kZarrConventions,
                          .make = make_zarr_save_strategy,
                          .measure = measure_zarr});
  entries.load.push_back({.name = "zarr",
                          .versions = {1},
                          .about = "Megatron-Core's zarr backend (up to 0.15)",
                          .open = [](std::shared_ptr<Storage> storage, const OpenHints&) {
                            return open_zarr(std::move(storage));
                          }});
  return entries;
}

}  // namespace dckpt
