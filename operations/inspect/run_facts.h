#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// Facts about the run that saved a checkpoint; unknown ones are left out.
struct RunFacts {
  using Number = std::pair<std::string, std::int64_t>;
  /// Sizes of the model: "layers", "hidden", "ffn", "heads", "query groups", "experts",
  /// "vocabulary".
  std::vector<Number> model{};
  /// Parallel sizes of the saving run: "TP", "PP", "VPP", "CP", "EP" and "DP", and "ranks".
  std::vector<Number> parallel{};
  std::string optimizer{};  ///< in the spelling of args: "adam"
};

/// Reads Megatron's args, Megatron-Bridge's run_config.yaml, or a model's config.json.
RunFacts run_facts(const CheckpointReader& reader);

}  // namespace dckpt
