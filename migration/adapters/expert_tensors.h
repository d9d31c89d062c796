#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mapping/planning/metadata.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A tensor of all experts of a layer, (experts, rows, columns), and the keys of the matrices that
/// it consists of: expert by expert, each of them in as many equal parts of rows.
struct FusedExperts {
  std::string key;
  std::vector<std::string> parts;
};

/// Returns the model with the matrices in place of the fused tensors. Nothing is copied.
std::unique_ptr<CheckpointReader> split_experts(std::unique_ptr<CheckpointReader> model,
                                                const std::vector<FusedExperts>& fused);

/// Undoes split_experts(): the tensors have their order in `original` again, those that it lacks
/// come last.
std::unique_ptr<CheckpointReader> join_experts(std::unique_ptr<CheckpointReader> split,
                                               const Metadata& original,
                                               const std::vector<FusedExperts>& fused);

}  // namespace dckpt
