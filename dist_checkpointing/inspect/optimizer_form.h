#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "configs/conventions.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The parts of "optimizer.state.NAME.MODEL_KEY", with or without "chained_0." before it; both
/// empty for other keys.
struct OptimizerStateKey {
  std::string_view name;       ///< "exp_avg", "fp32_param", …
  std::string_view model_key;  ///< of the model's tensor that it belongs to
};
OptimizerStateKey parse_optimizer_state_key(std::string_view key);

/// How Megatron's distributed optimizer has cut its state ("fully_reshardable",
/// "fully_sharded_model_space", …); empty if the common state does not say so.
std::string optimizer_sharding(const Value& common);

/// Reformulates optimizer tensors that are stored as boxes; Megatron-Core 0.8 to 0.15 need this
/// form to resume from a torch_dist checkpoint of sharding type fully_sharded_model_space. Does
/// nothing for other types. The grid is that of the model tensor's chunks, or of the tensor's own,
/// if these are regular, otherwise one cell: Megatron accepts any that does not join layers or
/// experts. `metadata` is then a plan of what to store: its chunks are cells, not what the source
/// has. Returns how many tensors have changed their form. `fragments_lost`: the source's format
/// (zarr) does not record what was flattened; bucket space of such a source is a CheckpointError
/// (unsupported), other bucket space stays as it is.
std::size_t reformulate_optimizer_state(Metadata& metadata, const Value& common,
                                        bool fragments_lost);

/// What determines which releases can load a checkpoint.
struct StoredForm {
  Conventions conventions{};
  bool common_file = false;  ///< the common state is a separate file
  const Metadata& metadata;
  const Value& common;
  std::string_view readers{};  ///< see CheckpointInfo
  /// Of the optimizer, tensors and objects that a conversion has left out, while others are there.
  std::uint64_t state_left_out = 0;
};

/// A key as Hugging Face or Megatron-FSDP calls it, not Megatron-Core; null if there is none.
const std::string* find_foreign_key(const Metadata& metadata);
/// Tells a key of Megatron-Core, which no model of Hugging Face has.
bool is_megatron_key(std::string_view key);

/// Who loads it. No form of an optimizer works for all releases of Megatron-Core.
Readers readers_of(const StoredForm& form);
/// The same as sentences.
std::vector<std::string> describe_readers(const StoredForm& form);

/// What a run that resumes the optimizer may change, for people: "TP, PP, EP, DP", "DP only" or
/// "no, because …"; empty if no optimizer state is stored, or nothing is known of its form.
std::string describe_resharding(const StoredForm& form);
/// The names of its state tensors, in alphabetical order: "exp_avg", "exp_avg_sq", "fp32_param".
std::vector<std::string> optimizer_states(const Metadata& metadata);

}  // namespace dckpt
