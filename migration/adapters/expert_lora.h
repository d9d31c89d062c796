#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mapping/planning/rearrange.h"
#include "migration/adapters/expert_tensors.h"
#include "migration/adapters/model_names.h"
#include "migration/adapters/peft_adapter.h"
#include "strategies/contract/reader.h"
#include "strategies/views/low_rank_reader.h"

namespace dckpt {

/// Returns the fused tensors of a model that the adapter changes expert by expert, by
/// `target_parameters` or by modules of single experts.
std::vector<FusedExperts> fused_experts(const Metadata& model, const PeftAdapter& adapter,
                                        const NamesInModel& names);

/// Returns keys of the model that tell how it names the experts that the adapter changes.
std::vector<std::string> keys_of_experts(const PeftAdapter& adapter);

/// Returns the key of one expert's part of a fused tensor.
std::string key_of_slice(const std::string& fused, std::int64_t expert);

/// An adapter's matrices, and others that are cut out of them.
class CutFactors {
 public:
  explicit CutFactors(std::shared_ptr<const CheckpointReader> adapter);

  /// Returns the position of the matrix with these entries of `tensor`; `steps` are the distances
  /// between rows and between columns.
  std::size_t cut(std::size_t tensor, const Box& entries, const Shape& steps);
  /// Returns the adapter with all matrices; those that it had keep their positions.
  std::shared_ptr<const CheckpointReader> reader() &&;

 private:
  std::shared_ptr<const CheckpointReader> adapter_;
  std::vector<RearrangedTensor> tensors_;
};

/// The factors of an expert's update, for rows [first, first + count) of the matrix that it is
/// added to. The matrix is lora_B × lora_A of the expert, or `turned`, its transpose.
struct ExpertUpdate {
  std::int64_t expert = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool turned = false;
};
void cut_factors(const ExpertLora& lora, const ExpertUpdate& update, CutFactors& factors,
                 LowRankTerm& term);

}  // namespace dckpt
