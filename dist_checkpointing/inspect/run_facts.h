#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// What a checkpoint says of the run that saved it; what it does not say is left out.
struct RunFacts {
  using Number = std::pair<std::string, std::int64_t>;
  /// Of the model: "layers", "hidden", "ffn", "heads", "query groups", "experts", "vocabulary".
  std::vector<Number> model{};
  /// "TP", "PP", "VPP", "CP", "EP" and "DP", and "ranks": sizes when it was saved.
  std::vector<Number> parallel{};
  std::string optimizer{};  ///< as args call it: "adam"
};

/// From Megatron's args, Megatron-Bridge's run_config.yaml, or a model's config.json.
RunFacts run_facts(const CheckpointReader& reader);

/// A sentence if the folder has the name of another iteration than the common state says: it was
/// renamed, or holds files of several iterations. Otherwise empty.
[[nodiscard]] std::string iteration_conflict(const CheckpointReader& reader);

}  // namespace dckpt
